"""Damaged pages are never served, cost nothing else, and are healed; and the program that counts this can tell."""

import pytest

from linearkv.cache import FileStore, Hit, Stored, decode
from linearkv.eval.faults import KINDS, STORES, run
from linearkv.eval.fuzz_pages import seal


@pytest.fixture(scope="module")
def report():
    """Every kind of fault in every store, twice."""
    return run(2 * len(KINDS) * len(STORES), seed=5)


def test_every_kind_of_fault_was_injected_and_left_out_only_what_this_system_forbids(report):
    assert set(report.kinds) | set(report.skipped) >= set(KINDS)
    assert all(counts["injected"] >= 2 for counts in report.kinds.values())
    assert all(reason == "needs the right to mount a file system" for reason in report.skipped.values())
    assert set(report.stores) == set(STORES)


def test_no_fault_has_wrong_bytes_served(report):
    assert not report.totals.get("wrong"), report.failures


def test_no_fault_makes_a_store_raise(report):
    assert not report.totals.get("crashes"), report.failures


def test_no_fault_takes_a_page_along_that_it_did_not_touch(report):
    assert not report.totals.get("lost others"), report.failures


def test_every_fault_is_healed_by_putting_the_page_again(report):
    assert report.totals["healed"] == report.totals["injected"], report.failures


class Trusting(FileStore):
    """Believes any MAC."""

    def get(self, keys, into=None):
        results = super().get(keys)
        for path in (self.folder / "quarantine").glob("*"):
            key = path.name.split("-")[1].removesuffix(".safetensors")
            if key in results:
                results[key] = Hit(decode(seal(path.read_bytes(), self._secret), key, self._secret), "disk", 0)
        return results


class Raising(FileStore):
    """Takes what it finds damaged for the caller's trouble."""

    def get(self, keys, into=None):
        results = super().get(keys)
        if any(not isinstance(result, Hit) for result in results.values()):
            raise OSError("damaged")
        return results


class Careless(FileStore):
    """Serves nothing where one page is damaged."""

    def get(self, keys, into=None):
        results = super().get(keys)
        missed = [result for result in results.values() if not isinstance(result, Hit)]
        return dict.fromkeys(results, missed[0]) if missed else results


class Stubborn(FileStore):
    """Never writes again what it once found damaged."""

    def put(self, pages, *, bulk=False):
        if (self.folder / "quarantine").exists():
            return {page.key: Stored(page.nbytes) for page in pages}
        return super().put(pages, bulk=bulk)


@pytest.mark.parametrize(
    ("store", "noticed"),
    [(Trusting, "wrong"), (Raising, "crashes"), (Careless, "lost others"), (Stubborn, "not healed")],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_store_that_breaks_a_promise_is_found_out(store, noticed, tmp_path):
    stores = {store.__name__: lambda folder, secret: store(folder, secret, None)}
    report = run(4, seed=1, stores=stores, kinds=["one bit, tensors", "several bits, tensors"], folder=tmp_path)
    assert report.totals[noticed] == 4
    assert not report.good
    assert len(report.failures) == 4
