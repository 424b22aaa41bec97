"""One tenant finds nothing of another's; and the program that looks for it would see it, and a difference in time."""

from itertools import combinations

import numpy as np
import pytest

from linearkv.eval.probes import PROBES, ask, compare, mann_whitney, noise_floor
from linearkv.tenants import open_tenant

EACH = 15


def test_no_probe_finds_anything_of_another_tenant(tmp_path):
    asked = ask(open_tenant(tmp_path, "a"), open_tenant(tmp_path, "b"), EACH * len(PROBES), seed=3)
    assert asked.probes == dict.fromkeys(PROBES, EACH)
    assert asked.found == {}


def test_tenants_that_share_a_secret_are_found_out(tmp_path):
    tenants = [open_tenant(tmp_path, name, secret=bytes(32)) for name in "ab"]
    asked = ask(*tenants, 2 * len(PROBES), seed=3)
    for name in ("file copied, under the other's key", "file copied, under one's own key", "in the other's folder"):
        assert asked.found[name] == {"get": 2}


def draw(seed, size, low=100, high=130, added=0):
    return np.random.default_rng(seed).integers(low, high, size) + added


def test_the_shift_is_the_share_of_pairs_in_which_the_first_is_larger():
    one, other = draw(1, 40, 0, 9), draw(2, 30, 0, 9)
    pairs = [float(a > b) + 0.5 * float(a == b) for a in one for b in other]
    assert mann_whitney(one, other)[0] == pytest.approx(np.mean(pairs) - 0.5)


def test_p_is_close_to_that_of_all_relabellings():
    values = np.array([3, 9, 4, 1, 7, 7, 2, 8, 12, 5, 6, 9])
    shift, p = mann_whitney(values[:6], values[6:])
    shifts = []
    for places in combinations(range(12), 6):
        rest = [place for place in range(12) if place not in places]
        shifts.append(mann_whitney(values[list(places)], values[rest])[0])
    assert p == pytest.approx(np.mean(np.abs(shifts) >= abs(shift) - 1e-9), abs=0.1)


def test_equal_values_are_no_difference():
    assert mann_whitney(np.full(20, 5), np.full(20, 5)) == (0.0, 1.0)


def test_the_noise_floor_is_passed_as_rarely_as_it_says():
    floors = [noise_floor(draw(seed, 200), draw(seed + 1000, 200), 0.9, seed) for seed in range(3)]
    shifts = [abs(mann_whitney(draw(seed + 2000, 200), draw(seed + 3000, 200))[0]) for seed in range(400)]
    assert 0.05 < np.mean(np.array(shifts) > np.mean(floors)) < 0.16


@pytest.mark.parametrize(("added", "within"), [(0, True), (3, False)])
def test_a_difference_is_told_from_noise(added, within):
    times = [draw(1, 2000, added=added), draw(2, 2000), draw(3, 2000)]
    comparison = compare("text", "get", times, 0.998, seed=0)
    assert comparison.within is within
    assert comparison.difference == pytest.approx(added, abs=1)
