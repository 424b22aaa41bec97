"""Damaged pages are never served, cost nothing else, and are healed; and the program that counts this can tell."""

import json
import logging
import shutil
import subprocess
import sys

import pytest

from linearkv.cache import FileStore, Hit, Miss, PageDamaged, Stored, decode
from linearkv.eval import faults
from linearkv.eval.faults import KINDS, PAGE, REMOTE_STORES, SERVER, STORES, run
from linearkv.eval.fuzz_pages import seal

NO_REDIS = shutil.which("redis-server") is None
needs_redis = pytest.mark.skipif(NO_REDIS, reason="redis-server is not installed")


@pytest.fixture(scope="module")
def report():
    """Every kind of fault in every store that it concerns, twice or more often."""
    return run(2 * len(KINDS) * (len(STORES) + len(REMOTE_STORES)), seed=5)


def test_every_kind_of_fault_was_injected_and_left_out_only_what_this_system_forbids(report):
    assert set(report.kinds) | set(report.skipped) >= set(KINDS)
    assert all(counts["injected"] >= 2 for counts in report.kinds.values())
    if NO_REDIS:
        assert {name for name in report.skipped if KINDS.get(name) and KINDS[name].needs == SERVER}
    else:
        assert set(report.skipped.values()) <= {"needs the right to mount a file system"}
        assert set(report.stores) == {*STORES, *REMOTE_STORES}


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


def test_a_fault_that_forbids_the_log_to_grow_leaves_it_as_quiet_as_it_was(tmp_path):
    logging.disable(logging.WARNING)
    try:
        run(1, seed=1, stores={"one": STORES["file tier"]}, kinds=["writes cut short"], folder=tmp_path)
        assert logging.root.manager.disable == logging.WARNING
    finally:
        logging.disable(logging.NOTSET)


def test_a_remote_store_without_a_server_is_left_out_and_that_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "faults.json"
    command = [
        sys.executable,
        "-m",
        "linearkv.eval.faults",
        "--count",
        "3",
        "--folder",
        str(tmp_path),
        "--out",
        str(out),
    ]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(out.read_text())
    (name,) = REMOTE_STORES
    assert result["skipped"][name] == "needs redis-server on the path"
    assert set(result["stores"]) == set(STORES)
    assert f"{name}: skipped, needs redis-server on the path" in ended.stdout
    assert {kind for kind in KINDS if KINDS[kind].needs == SERVER} <= set(result["skipped"])


class OnServer:
    """Nothing but values of a server, which are checked; a fault of one is that one's miss, and so is a lost server."""

    def __init__(self, folder, secret, *, remote):
        import redis

        folder.mkdir(exist_ok=True)
        self._secret = secret
        self._client = redis.Redis.from_url(remote)  # which, unlike others, does not try for seconds
        self._error = redis.RedisError

    def put(self, pages, *, bulk=False):
        for page in pages:
            try:
                self._client.set(page.key, page.buffer.numpy().tobytes())
            except self._error:
                continue
        return {page.key: Stored(page.nbytes) for page in pages}

    def read(self, key):
        """May raise."""
        raw = self._client.get(key)
        return Miss("absent") if raw is None else Hit(decode(raw, key, self._secret), "remote", len(raw))

    def get(self, keys):
        results = {}
        for key in keys:
            try:
                results[key] = self.read(key)
            except (self._error, PageDamaged) as error:
                results[key] = Miss(str(error))
        return results

    def close(self):
        self._client.close()


class TrustingRemote(OnServer):
    def read(self, key):
        raw = self._client.get(key)
        return Hit(decode(seal(raw, self._secret), key, self._secret), "remote", len(raw))


class RaisingRemote(OnServer):
    def get(self, keys):
        return {key: self.read(key) for key in keys}


class CarelessRemote(OnServer):
    """Takes what concerns one key for a lost server."""

    def get(self, keys):
        results = super().get(keys)
        missed = [result for result in results.values() if isinstance(result, Miss)]
        return dict.fromkeys(results, missed[0]) if missed else results


class StubbornRemote(OnServer):
    """Sets what is not there, and so never what is damaged."""

    def put(self, pages, *, bulk=False):
        return super().put([page for page in pages if not self._client.exists(page.key)])


class Despairing(OnServer):
    """Never asks again a server that was lost once."""

    lost = False

    def get(self, keys):
        return super().get([] if self.lost else keys) or dict.fromkeys(keys, Miss("lost"))

    def put(self, pages, *, bulk=False):
        try:
            self._client.ping()
        except self._error:
            self.lost = True
        return super().put(pages)


@needs_redis
@pytest.mark.parametrize(
    ("store", "kind", "noticed"),
    [
        (TrustingRemote, "one bit, tensors", "wrong"),
        (RaisingRemote, "one bit, tensors", "crashes"),
        (RaisingRemote, "value of another type", "crashes"),
        (CarelessRemote, "value of another type", "lost others"),
        (StubbornRemote, "several bits, tensors", "not healed"),
        (Despairing, "server stopped", "not healed"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_remote_store_that_breaks_a_promise_is_found_out(store, kind, noticed, tmp_path, monkeypatch):
    monkeypatch.setattr(faults, "RETURN_SECONDS", 0.5)
    report = run(4, seed=1, remote_stores={"one": store}, kinds=[kind], folder=tmp_path)
    assert report.totals["injected"] == 4
    assert report.totals.get(noticed), report.totals
    assert not report.good


@needs_redis
def test_a_remote_store_that_keeps_them_is_not(tmp_path):
    kinds = [name for name, kind in KINDS.items() if kind.needs in (PAGE, SERVER) and name != "memory full"]
    report = run(len(kinds), seed=2, remote_stores={"one": OnServer}, kinds=kinds, folder=tmp_path)
    assert report.good, report.failures
    assert report.totals["healed"] == report.totals["misses"] == len(kinds)


@needs_redis
def test_pages_that_are_not_the_servers_are_no_evidence(tmp_path):
    class Elsewhere(OnServer):
        def read(self, key):
            found = super().read(key)
            return Hit(found.page, "memory", 0) if isinstance(found, Hit) else found

    report = run(1, seed=1, remote_stores={"one": Elsewhere}, kinds=["value gone"], folder=tmp_path)
    assert report.totals["crashes"] == 1
    assert "a page came from memory" in report.failures[0]["what"]


@needs_redis
def test_the_server_ends_with_the_run(tmp_path):
    servers = []

    def opened(folder, secret, *, remote):
        servers.append(remote)
        return OnServer(folder, secret, remote=remote)

    run(2, seed=1, remote_stores={"one": opened}, kinds=["server stopped"], folder=tmp_path)
    import redis

    with pytest.raises(redis.ConnectionError):
        redis.Redis.from_url(servers[0]).ping()
