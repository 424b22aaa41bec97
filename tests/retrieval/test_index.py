import numpy as np
import pytest

from linearkv.retrieval import VectorIndex


def unit(*angles):
    return np.array([[np.cos(a), np.sin(a)] for a in angles], np.float32)


@pytest.fixture
def index():
    index = VectorIndex(2)
    index.add([(7, unit(0.0)), (8, unit(0.5)), (9, unit(1.5, 0.1))])
    return index


@pytest.mark.parametrize("k", [1, 2, 3, 10])
def test_there_are_never_more_results_than_entries_and_none_twice(index, k):
    keys = [key for key, _ in index.search(unit(0.0), k)]
    assert keys == [7, 9, 8][:k]


def test_an_empty_index_finds_nothing():
    assert VectorIndex(2).search(unit(0.0), 5) == []


def test_the_best_of_several_vectors_counts(index):
    assert dict(index.search(unit(1.5), 1)) == {9: pytest.approx(1)}


def test_windows_of_one_text_do_not_crowd_out_others():
    index = VectorIndex(2)
    index.add([(1, unit(*[0.001] * 200)), (2, unit(1.0))])
    assert [key for key, _ in index.search(unit(0.0), 2)] == [1, 2]


def test_removed_entries_are_gone_with_all_their_vectors(index):
    index.remove({9, 7})
    assert [key for key, _ in index.search(unit(0.0), 5)] == [8]


def test_only_allowed_entries_are_found(index):
    assert [key for key, _ in index.search(unit(0.0), 5, {8, 9})] == [9, 8]
    assert index.search(unit(0.0), 5, set()) == []


def test_each_window_of_a_question_is_asked(index):
    assert [key for key, _ in index.search(unit(0.0, 0.5), 2)] == [7, 8]
