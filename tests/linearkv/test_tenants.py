"""Tenants: a random secret each, kept safely, never replaced silently, and names that cannot leave the store."""

import logging
import multiprocessing
import os
import stat
import tempfile
from pathlib import Path

import pytest
import torch

from linearkv import tenants as tenants_module
from linearkv.cache import Hit, Miss, encode, open_pages
from linearkv.cache import files as files_module
from linearkv.errors import StoreMismatchError, StoreReadOnlyError
from linearkv.tenants import TenantSecretError, destroy_tenant, open_tenant, tenant_folder

NAMES = [
    "default",
    "../x",
    "../../etc",
    "/etc/passwd",
    ".",
    "..",
    "a/b",
    "x" * 10_000,
    "日本語",
    "e\u0301",
    "a\0b",
    "-rf *",
]


def secret_file(store: Path, name: str = "acme") -> Path:
    return tenant_folder(store, name) / "secret"


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:20]))
def test_any_name_has_a_folder_of_its_own_inside_the_store_that_does_not_show_it(tmp_path, name):
    tenant = open_tenant(tmp_path / "store", name)
    assert tenant.folder.parent == tmp_path / "store" / "tenants"
    assert len(tenant.folder.name) == 32
    assert list(tmp_path.iterdir()) == [tmp_path / "store"]
    assert open_tenant(tmp_path / "store", name) == tenant


@pytest.mark.parametrize("made", [0, 2, 3], ids=["nothing", "the store", "and its tenants"])
def test_the_folders_of_a_new_tenant_are_durable_up_to_the_first_that_was_there(tmp_path, monkeypatch, made):
    names = ["above", "store", "tenants"]
    (tmp_path / Path(*names[:made])).mkdir(parents=True, exist_ok=True)  # by a process that was killed before the rest
    synced: set[Path] = set()

    def noted(folder: Path, fsync=os.fsync) -> None:
        synced.update(folder.resolve().iterdir())

    monkeypatch.setattr(files_module, "sync_folder", noted)
    monkeypatch.setattr(tenants_module, "sync_folder", noted)
    folder = open_tenant(tmp_path / "above" / "store", "acme").folder.resolve()
    top = tmp_path.resolve()
    assert synced >= {folder, *(top / Path(*names[: depth + 1]) for depth in range(3))}


def test_different_names_are_different_tenants(tmp_path):
    tenants = [open_tenant(tmp_path, name) for name in [*NAMES, "é", "Default", "default "]]
    assert len({tenant.folder for tenant in tenants}) == len(tenants)
    assert len({tenant.secret for tenant in tenants}) == len(tenants)


@pytest.mark.parametrize("name", ["", " ", "\n\t"], ids=ascii)
def test_a_blank_name_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="cannot be blank"):
        open_tenant(tmp_path, name)


def test_a_name_that_is_not_text_is_refused(tmp_path):
    with pytest.raises(ValueError, match="surrogate"):
        open_tenant(tmp_path, "\ud800")


def test_the_secret_is_random_and_stays(tmp_path):
    one, two = open_tenant(tmp_path / "a", "acme"), open_tenant(tmp_path / "b", "acme")
    assert one.folder.name == two.folder.name
    assert one.secret != two.secret, "it is not made from the name"
    assert open_tenant(tmp_path / "a", "acme").secret == one.secret


def test_the_secret_is_for_its_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        open_tenant(tmp_path, "acme")
    finally:
        os.umask(before)
    assert stat.S_IMODE(secret_file(tmp_path).stat().st_mode) == 0o600
    assert stat.S_IMODE(secret_file(tmp_path).parent.stat().st_mode) == 0o700


def test_the_secret_is_not_shown(tmp_path):
    tenant = open_tenant(tmp_path, "acme")
    assert tenant.secret.hex() not in repr(tenant)
    assert repr(tenant.secret) not in repr(tenant)


def test_a_secret_that_others_may_write_is_refused(tmp_path):
    open_tenant(tmp_path, "acme")
    secret_file(tmp_path).chmod(0o620)
    with pytest.raises(TenantSecretError, match=r"0620.*chmod 600"):
        open_tenant(tmp_path, "acme")


def test_a_secret_that_others_may_read_is_used_with_a_warning(tmp_path, caplog):
    tenant = open_tenant(tmp_path, "acme")
    secret_file(tmp_path).chmod(0o644)
    with caplog.at_level(logging.WARNING):
        assert open_tenant(tmp_path, "acme") == tenant
    assert "chmod 600" in caplog.text
    assert tenant.secret.hex() not in caplog.text


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:40],
        lambda content: content + b"x",
        lambda content: content.replace(b"secret-1", b"secret-2"),
        lambda content: content[:30] + (b"0" if content[30:31] != b"0" else b"1") + content[31:],
        lambda content: bytes(len(content)),
    ],
    ids=["empty", "no end", "cut", "longer", "other format", "one digit", "zeros"],
)
def test_a_damaged_secret_is_an_error_and_never_replaced(tmp_path, damage):
    open_tenant(tmp_path, "acme")
    damaged = damage(secret_file(tmp_path).read_bytes())
    secret_file(tmp_path).write_bytes(damaged)
    with pytest.raises(TenantSecretError, match=r"is damaged.*backup"):
        open_tenant(tmp_path, "acme")
    assert secret_file(tmp_path).read_bytes() == damaged


@pytest.mark.parametrize("replacement", [None, "directory", "link", "fifo"])
def test_a_missing_or_replaced_secret_is_an_error_and_never_made_anew(tmp_path, replacement):
    open_tenant(tmp_path, "acme")
    path = secret_file(tmp_path)
    kept = path.rename(tmp_path / "kept")
    match replacement:
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to(kept)
        case "fifo":
            os.mkfifo(path, 0o600)
    with pytest.raises(TenantSecretError):
        open_tenant(tmp_path, "acme")


def test_a_secret_of_ones_own_is_not_kept_and_has_to_be_the_same(tmp_path):
    secret = os.urandom(32)
    tenant = open_tenant(tmp_path, "acme", secret=secret)
    assert tenant.secret == secret
    assert all(secret.hex().encode() not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert open_tenant(tmp_path, "acme", secret=secret) == tenant
    with pytest.raises(StoreMismatchError, match="not the one"):
        open_tenant(tmp_path, "acme", secret=bytes(32))
    with pytest.raises(StoreMismatchError, match="Give it"):
        open_tenant(tmp_path, "acme")


def test_the_secret_the_store_keeps_may_be_given_and_no_other(tmp_path):
    tenant = open_tenant(tmp_path, "acme")
    assert open_tenant(tmp_path, "acme", secret=tenant.secret) == tenant
    with pytest.raises(StoreMismatchError, match="not the one"):
        open_tenant(tmp_path, "acme", secret=bytes(32))


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_secret_of_another_length_is_refused(tmp_path, length):
    with pytest.raises(ValueError, match=f"32 bytes, got {length}"):
        open_tenant(tmp_path, "acme", secret=bytes(length))
    assert not list(tmp_path.iterdir())


def test_a_tenant_is_not_made_where_that_is_not_wanted(tmp_path):
    with pytest.raises(TenantSecretError, match="no tenant 'acme'"):
        open_tenant(tmp_path, "acme", create=False)
    assert not list(tmp_path.iterdir())


def test_processes_that_make_a_tenant_at_once_agree(tmp_path):
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        start = context.Barrier(4)

        def work(number: int, attempt=attempt, start=start) -> None:
            start.wait()
            (tmp_path / f"{attempt}-{number}").write_bytes(open_tenant(tmp_path / str(attempt), "acme").secret)

        processes = [context.Process(target=work, args=(number,)) for number in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(30)
        assert [process.exitcode for process in processes] == [0] * 4
        assert len({(tmp_path / f"{attempt}-{number}").read_bytes() for number in range(4)}) == 1
        assert [path.name for path in (tmp_path / str(attempt) / "tenants").iterdir()] == [
            tenant_folder(tmp_path, "acme").name
        ], "nothing is left aside"


def test_equal_text_under_two_tenants_is_not_shared(tmp_path):
    key = "ab" * 32
    for name in ("acme", "bolt"):
        tenant = open_tenant(tmp_path, name)
        store = open_pages(tenant.folder, tenant.secret, memory_bytes=1 << 20, disk_bytes=None)
        assert store.get([key])[key] == Miss("absent")
        store.put([encode(key, {"x": torch.ones(3)}, secret=tenant.secret)])
        store.close()
    acme, bolt = open_tenant(tmp_path, "acme"), open_tenant(tmp_path, "bolt")
    name = Path("pages") / key[:2] / f"{key}.safetensors"
    (bolt.folder / name).write_bytes((acme.folder / name).read_bytes())
    store = open_pages(bolt.folder, bolt.secret, memory_bytes=1 << 20, disk_bytes=None)
    assert store.get([key])[key].damaged
    store.close()


def test_destroying_a_tenant_removes_everything_of_it_and_nothing_else(tmp_path):
    key = "ab" * 32
    for name in ("acme", "bolt"):
        tenant = open_tenant(tmp_path, name)
        store = open_pages(tenant.folder, tenant.secret, memory_bytes=1 << 20, disk_bytes=None)
        store.put([encode(key, {"x": torch.ones(3)}, secret=tenant.secret)])
        store.close()
    acme, bolt = open_tenant(tmp_path, "acme"), open_tenant(tmp_path, "bolt")
    assert destroy_tenant(tmp_path, "acme")
    assert not destroy_tenant(tmp_path, "acme")
    assert list((tmp_path / "tenants").iterdir()) == [bolt.folder]
    store = open_pages(bolt.folder, bolt.secret, memory_bytes=1 << 20, disk_bytes=None)
    assert isinstance(store.get([key])[key], Hit)
    store.close()
    assert open_tenant(tmp_path, "acme").secret != acme.secret


def test_what_interrupted_processes_left_is_removed(tmp_path):
    open_tenant(tmp_path, "acme")
    tenants = tmp_path / "tenants"
    for name in (".new-old", ".new-young", ".destroyed-x"):
        (tenants / name).mkdir()
        (tenants / name / "secret").write_text("x")
    os.utime(tenants / ".new-old", (0, 0))
    open_tenant(tmp_path, "bolt")
    assert {path.name for path in tenants.glob(".*")} == {".new-young"}


def test_a_store_that_may_not_be_written_says_so():
    with tempfile.TemporaryDirectory() as name:
        store = Path(name)
        tenant = open_tenant(store, "acme")
        for path in [*store.rglob("*"), store]:
            path.chmod(0o555 if path.is_dir() else 0o444)

        def work() -> None:
            if os.geteuid() == 0:
                os.setuid(65534)
            assert open_tenant(store, "acme") == tenant
            for attempt in (lambda: open_tenant(store, "bolt"), lambda: destroy_tenant(store, "acme")):
                with pytest.raises(StoreReadOnlyError, match=str(store / "tenants")):
                    attempt()

        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
        for path in [store, *store.rglob("*")]:
            path.chmod(0o700)
        assert process.exitcode == 0


@pytest.mark.parametrize("mode", [0o700, 0o755], ids=["folder", "secret"])
def test_a_tenant_of_another_user_is_an_error_that_names_the_user_id(mode):
    with tempfile.TemporaryDirectory() as name:
        store = Path(name)
        store.chmod(0o755)
        folder = open_tenant(store, "acme").folder
        folder.chmod(mode)
        if os.geteuid():  # not root: nobody else to become, so take the owner's own rights
            (secret_file(store) if mode == 0o755 else folder).chmod(0)

        def work() -> None:
            if os.geteuid() == 0:
                os.setuid(65534)
            with pytest.raises(TenantSecretError, match=f"cannot be (opened|read) by user id {os.geteuid()}"):
                open_tenant(store, "acme")

        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
        folder.chmod(0o700)
        assert process.exitcode == 0
