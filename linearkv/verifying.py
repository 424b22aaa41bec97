"""Deep verification: every stored byte is read and checked, and catalogue, records and states are held against each
other. Needs the tenant's secret, and no model."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from linearkv.answers import StoreReport
from linearkv.cache import NO_TAG, PageStore, open_pages
from linearkv.errors import LinearKVError, StoreMismatchError
from linearkv.progress import Update
from linearkv.records import Records
from linearkv.retrieval import DocumentStore
from linearkv.settings import Settings
from linearkv.state_cache import content_tags
from linearkv.tenants import open_tenant


def verify_store(
    store: str | Path,
    tenant: str = "default",
    *,
    secret: bytes | None = None,
    settings: Settings | None = None,
    progress: Update | None = None,
) -> StoreReport:
    """What `Engine.verify` reports, without a model: a chunk has a state where any model and prompt left one.

    Args:
        store, tenant, secret, settings: as for `Engine.open`.
        progress: called as work goes on.

    Raises:
        TenantSecretError, StoreMismatchError: there is no such tenant, or nothing can be checked with this secret or
            this version of LinearKV.
    """
    settings = settings or Settings()
    opened = open_tenant(store, tenant, secret=secret, create=False)
    with ExitStack() as closing:
        remote = settings.remote_url
        pages = open_pages(
            opened.folder,
            opened.secret,
            memory_bytes=0 if remote is None else settings.memory_budget,
            disk_bytes=settings.disk_budget,
            backend=settings.cache if remote is not None else "files",
            remote=remote,
            remote_days=settings.remote_days,
        )
        closing.callback(pages.close)
        catalogue: DocumentStore | str
        try:
            catalogue = closing.enter_context(DocumentStore(opened.folder / "index", "ro"))
        except StoreMismatchError:
            raise
        except LinearKVError as error:
            catalogue = str(error)
        return check(pages, Records(opened.folder, opened.secret), catalogue, content_tags(opened.secret), progress)


def check(
    pages: PageStore,
    records: Records,
    catalogue: DocumentStore | str,
    tag: Callable[[str], str],
    progress: Update | None,
) -> StoreReport:
    """Reads all of a tenant's store. `catalogue` is why it could not be opened, where it could not."""

    def shown(stage: str) -> Callable[[int, int], None] | None:
        return None if progress is None else lambda done, total: progress(stage, done, total)

    states, recorded = pages.verify(shown("checking")), records.verify(shown("checking records"))
    writable = all(tier.writable for tier in pages.stat() if tier.tier == "disk")

    def what(name: str, reason: str) -> str:
        stays = not writable and "left in place" not in reason
        return f"{name}: {reason}{' (left in place: the store is not writable)' if stays else ''}"

    report = StoreReport(
        pages=states.pages,
        bytes=states.bytes,
        records=recorded.pages,
        damaged=[what(key, reason) for key, reason in states.damaged]
        + [what(f"record {key}", reason) for key, reason in recorded.damaged],
        orphans=states.orphans + recorded.orphans,
        foreign=states.foreign + recorded.foreign,
        unread=states.unread,
    )
    if isinstance(catalogue, str):
        report.catalogue = [catalogue]
        if recorded.pages:
            report.catalogue.append(f"there are {recorded.pages} record(s) to make it anew from: run linearkv repair")
        return report
    report.catalogue = catalogue.damage()
    if report.catalogue:
        return report
    report.catalogue = catalogue.verify()
    if damaged := catalogue.damaged_vectors():
        report.catalogue.append(f"the vectors of {len(damaged)} chunk(s) are damaged: run linearkv repair")
    if catalogue.get("owner") is None and recorded.pages:
        report.catalogue.append(f"it lacks what {recorded.pages} record(s) have: run linearkv repair")
    with catalogue.reading():
        live = {tag(content_hash) for content_hash in catalogue.live_hashes()}
        stored = [found for found in pages.tags().values() if found != NO_TAG]
        report.chunks = len(live)
        report.without_state = len(live.difference(stored))
        report.without_text = sum(found not in live for found in stored)
        report.without_record = records.missing(catalogue.records())
    return report
