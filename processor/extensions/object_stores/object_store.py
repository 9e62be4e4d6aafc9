"""Object store client: one prefix of one bucket (S3, Google Cloud Storage, Azure), based on obstore.

Invariants
- A name is given once: `create` sends If-None-Match: *, so of two writers one gets it. After an uncertain outcome (a
  broken connection, no response) the second attempt may be refused because of the first, so the content decides: False
  means other content. Creations are not retried by the library, which would hide which of the two happened.
- An outage becomes NotReady soon: 1 s for a connection, PATIENCE_S for a response (longer if megabytes are sent first),
  two retries within 2 s. So does a refusal (403): a role whose key is just being renewed must not stop what is served.
- Messages are one line without URLs, keys and the library's text, which may contain a signed URL.
- Reads into memory and downloads have a size limit. It is checked before the body is read, and again as the body
  arrives: the length that a store reports may be wrong.
- A listing ends: after LISTING_S for the next thousand keys, or for all folders; after MAX_NAMES folders and MAX_KEYS
  keys; and if names repeat (a page token that the store has returned before). Exceeding a limit is an outage. A name
  has at most MAX_KEY_NBYTES, as in S3.

Costs: get, head, create, put: one request each (a put of more than PART_NBYTES: one per part, and two); folder: one
for each thousand names; delete: one for each thousand keys on S3. Threads share a store, and no lock is held while one
waits. A store does not survive a fork: open it in the process that uses it.

Limited only in time: the bytes of one page of a listing, and the number of empty pages, which the library does not
report.

Rejected: fsspec, whose s3fs has no conditional creation and brings an event loop; boto3, which opens S3 alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from freshet_serving.processor.errors import BadInput, Corrupt, FreshetError, NotReady
from freshet_serving.processor.extras import needed
from freshet_serving.processor.repository import address_parts

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import ClientConfig, RetryConfig
    from obstore.store import ObjectStore as Bucket

CONNECT_S, PATIENCE_S, RETRY_S, RETRIES = 1.0, 3.0, 2.0, 2
# A whole request may take any time while bytes arrive, and BRIEF times the patience if it is small.
WHOLE_S, BRIEF, BRIEF_NBYTES = 86_400.0, 10, 1 << 20
PART_NBYTES, CHUNK_NBYTES, SLOWEST_NBYTES_PER_S = 8 << 20, 4 << 20, 1 << 20
MAX_GET_NBYTES = 64 << 20
LISTING_S, MAX_NAMES, MAX_KEYS, MAX_KEY_NBYTES = 10.0, 100_000, 10_000_000, 1024
DELETED_AT_ONCE = 1000
_STATUS = re.compile(r"non-2xx status code: (\d{3})")
T = TypeVar("T")


class ObjectContent(NamedTuple):
    """An object's content: no data if it is `unchanged`, still what the given etag names."""

    data: bytes
    etag: str
    unchanged: bool = False


class ObjectHead(NamedTuple):
    nbytes: int
    etag: str


class FolderListing(NamedTuple):
    """Folders with objects, ascending, and etags of objects, "" where the store gives none, directly below a prefix."""

    folders: list[str]
    etags: dict[str, str]


class ObjectEntry(NamedTuple):
    key: str
    nbytes: int
    etag: str


def open_store(address: str, what: str = "repository", patience_s: float = PATIENCE_S) -> ObjectStore:
    """Open the store at an address such as s3://bucket/prefix, which messages call `what`; nothing is requested yet.

    Credentials, region and endpoint come from the environment, under the names that the store's own tools use. Raises
    BadInput if the address is invalid, or the library is missing.
    """
    scheme, _, _ = address_parts(address, what)
    with needed(f"{what} {scheme}://", "objects"):
        import obstore.store  # noqa: F401
    return ObjectStore(address, what, patience_s)


class ObjectStore:
    """One prefix of one bucket; keys are relative to it, with '/'.

    Any call raises NotReady while the store cannot be reached or refuses, and BadInput for a bucket that does not exist
    and an invalid key.
    """

    def __init__(self, address: str, what: str = "repository", patience_s: float = PATIENCE_S) -> None:
        self.address = address
        self._what, self._patience_s = what, patience_s
        self._bucket = address_parts(address, what)[1]
        self._clients: dict[tuple[float, int, float], Bucket] = {}
        # Report an invalid configuration at once, not at the first request.
        self._asking()

    def get(self, key: str, etag: str = "", limit: int = MAX_GET_NBYTES) -> ObjectContent | None:
        """Return an object's content of at most `limit`, else raise Corrupt; None if there is no such object.

        What has the etag is known already, and not sent again.
        """
        from obstore.exceptions import NotModifiedError

        def read() -> ObjectContent:
            client = self._brief() if limit <= BRIEF_NBYTES else self._asking()
            reply = client.get(_key(key), options={"if_none_match": etag} if etag else {})
            return ObjectContent(self._body(key, reply, limit), reply.meta["e_tag"] or "")

        try:
            return self._found(read)
        except NotModifiedError:
            return ObjectContent(b"", etag, True)

    def download(self, key: str, path: Path, nbytes: int) -> bool:
        """Stream an object into a new file of at most `nbytes`; return False if there is no such object.

        After an error no file remains. Raises Corrupt if the object is larger.
        """

        def stream() -> bool:
            reply = self._asking().get(_key(key))
            self._check_size(key, reply.meta["size"], nbytes)
            written = 0
            with open(path, "xb", buffering=0) as file:
                try:
                    for chunk in reply.stream(min_chunk_size=CHUNK_NBYTES):
                        written += len(chunk)
                        self._check_size(key, written, nbytes)
                        file.write(memoryview(chunk))
                    if written != reply.meta["size"]:
                        raise NotReady(self._line("the response ended early"))
                except BaseException:
                    path.unlink(missing_ok=True)
                    raise
            return True

        return self._found(stream) or False

    def read_range(self, key: str, start: int, nbytes: int, etag: str) -> bytes:
        """Return bytes of an object from `start` on; raise BadInput if it is gone or has not this etag ("" for any)."""
        from obstore.exceptions import PreconditionError

        def read() -> bytes:
            options: GetOptions = {"range": (start, start + nbytes)}
            if etag:
                options["if_match"] = etag
            return self._body(key, self._asking().get(_key(key), options=options), nbytes, partial=True)

        try:
            if (data := self._found(read)) is not None:
                return data
        except PreconditionError:
            pass
        raise BadInput(f"{self._what}: {key.rpartition('/')[2][:64]!r} was replaced or removed while it was read")

    def head(self, key: str) -> ObjectHead | None:
        """Return size and etag of an object, or None if there is no such object."""

        def look() -> ObjectHead:
            meta = self._brief().head(_key(key))
            return ObjectHead(meta["size"], meta["e_tag"] or "")

        return self._found(look)

    def create(self, key: str, content: bytes | Path) -> bool:
        """Create an object exclusively; return False if another writer has created it with other content.

        The content is held in memory. After NotReady the object may exist nevertheless: the next attempt with the same
        content returns True.
        """
        data = content if isinstance(content, bytes) else content.read_bytes()
        from obstore.exceptions import AlreadyExistsError

        client = self._writing(len(data), retries=0)
        uncertain: NotReady | None = None
        for _ in range(2):
            try:
                self._asked(lambda: client.put(_key(key), data, mode="create", use_multipart=False))
                return True
            except NotReady as error:
                uncertain = error
            except AlreadyExistsError as error:
                # 409: another creation was in progress, and the store does not say whose, and whether it succeeded.
                if uncertain is None and _status(error) != 409:
                    return False
                if (head := self.head(key)) is not None:
                    return head.nbytes == len(data) and self._holds(key, data)
                uncertain = NotReady(self._line("another process is creating the same object"))
        assert uncertain is not None
        raise uncertain

    def put(self, key: str, content: bytes | Path) -> None:
        """Write or replace an object; readers see the old one or the new one as a whole."""
        nbytes = len(content) if isinstance(content, bytes) else content.stat().st_size
        client = self._writing(min(nbytes, PART_NBYTES), RETRIES)
        if isinstance(content, Path) and nbytes <= PART_NBYTES:
            content = content.read_bytes()  # one request; for an empty file too
        self._must(lambda: client.put(_key(key), content, chunk_size=PART_NBYTES, use_multipart=nbytes > PART_NBYTES))

    def folder(self, prefix: str) -> FolderListing:
        """Return what lies directly below a prefix; deeper levels are not listed."""
        from obstore import list_with_delimiter_async

        listed = self._listed(lambda: list_with_delimiter_async(self._brief(), prefix.strip("/") or None))
        prefixes, objects = listed["common_prefixes"], listed["objects"]
        if len(prefixes) + len(objects) > MAX_NAMES:
            raise NotReady(self._line(f"it lists more than {MAX_NAMES} names in one folder"))
        return FolderListing(
            sorted({str(name).rstrip("/").rpartition("/")[2] for name in prefixes}),
            {meta["path"].rpartition("/")[2]: meta["e_tag"] or "" for meta in objects},
        )

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield every key below a prefix, ascending if the store sorts: all levels, a thousand keys per request."""
        for entry in self.entries(prefix):
            yield entry.key

    def entries(self, prefix: str) -> Iterator[ObjectEntry]:
        """Yield the objects of keys(), with sizes and etags."""
        listing = self._must(lambda: self._brief().list(prefix.strip("/") or None, chunk_size=1000))
        count, last = 0, ""
        while chunk := self._listed(lambda: anext(listing, None)):
            count += len(chunk)
            if chunk[-1]["path"] == last:
                raise NotReady(self._line("its listing repeats itself"))
            last = chunk[-1]["path"]
            if count > MAX_KEYS or max(len(meta["path"]) for meta in chunk) > MAX_KEY_NBYTES:
                most = f"{MAX_KEYS} names of {MAX_KEY_NBYTES} bytes"
                raise NotReady(self._line(f"it lists more than {most}"))
            yield from (ObjectEntry(meta["path"], meta["size"], meta["e_tag"] or "") for meta in chunk)

    def _listed(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a part of a listing, run as a task, so that it can be cancelled after LISTING_S."""

        async def bounded() -> T:
            try:
                async with asyncio.timeout(LISTING_S):
                    return await ask()
            except TimeoutError:
                raise NotReady(self._line(f"a listing took more than {LISTING_S:g} s")) from None

        return self._must(lambda: _run_alone(bounded))

    def _body(self, key: str, reply: GetResult, limit: int, partial: bool = False) -> bytes:
        """Return the bytes of a reply, at most `limit`, counted as they arrive; `partial`: not of the whole object."""
        if not partial:
            self._check_size(key, reply.meta["size"], limit)
        data = bytearray()
        for chunk in reply.stream(min_chunk_size=min(limit, CHUNK_NBYTES)):
            self._check_size(key, len(data) + len(chunk), limit)
            data += memoryview(chunk)
        return bytes(data)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; a missing one is not an error."""
        rest = iter(keys)
        while batch := [_key(key) for key in islice(rest, DELETED_AT_ONCE)]:
            try:
                self._asked(lambda: self._asking().delete(batch))
            except FileNotFoundError:
                # Some stores stop at a missing object.
                for key in batch:
                    with contextlib.suppress(FileNotFoundError):
                        self._asked(partial(self._asking().delete, key))

    def _holds(self, key: str, data: bytes) -> bool:
        content = self.get(key, limit=len(data))
        return content is not None and content.data == data

    def _asking(self) -> Bucket:
        return self._client(self._patience_s, RETRIES)

    def _writing(self, nbytes: int, retries: int) -> Bucket:
        """Return a client for uploads of this size: the response comes after the last byte."""
        wait_s = self._patience_s
        while wait_s < nbytes / SLOWEST_NBYTES_PER_S:
            wait_s *= 2  # few different clients
        return self._client(wait_s, retries)

    def _brief(self) -> Bucket:
        """Return a client for small objects, with a limit on the whole request, for stores that send very slowly."""
        return self._client(self._patience_s, RETRIES, BRIEF * self._patience_s)

    def _client(self, read_s: float, retries: int, whole_s: float = WHOLE_S) -> Bucket:
        """Return a client with seconds for the next bytes and for the whole request.

        Two threads may create the same one; either can be used.
        """
        if (opened := self._clients.get((read_s, retries, whole_s))) is not None:
            return opened
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        client: ClientConfig = {
            "connect_timeout": timedelta(seconds=min(CONNECT_S, read_s)),
            "read_timeout": timedelta(seconds=read_s),
            "timeout": timedelta(seconds=whole_s),
            # An http:// endpoint is intended: MinIO on the same network.
            "allow_http": True,
        }
        retry: RetryConfig = {
            "max_retries": retries,
            "retry_timeout": timedelta(seconds=min(RETRY_S, read_s / 2)),
            "backoff": {
                "init_backoff": timedelta(milliseconds=50),
                "max_backoff": timedelta(milliseconds=500),
                "base": 2,
            },
        }
        try:
            store: Any = from_url(self.address, client_options=client, retry_config=retry)
        except (BaseError, ValueError):
            expected = "expected an address such as s3://bucket/prefix, and the store's own environment variables"
            raise BadInput(f"{self._what}: {expected}; this address cannot be opened") from None
        return self._clients.setdefault((read_s, retries, whole_s), store)

    def _found(self, act: Callable[[], T]) -> T | None:
        try:
            return self._asked(act)
        except FileNotFoundError:
            return None

    def _must(self, act: Callable[[], T]) -> T:
        try:
            return self._asked(act)
        except FileNotFoundError:
            raise NotReady(self._line("an object that it lists does not exist")) from None

    def _asked(self, act: Callable[[], T]) -> T:
        """Return the result of act(); convert errors of the library to ours, except those of conditions."""
        from obstore.exceptions import (
            AlreadyExistsError,
            BaseError,
            InvalidPathError,
            NotModifiedError,
            PreconditionError,
        )

        try:
            return act()
        except FreshetError:
            raise
        except (AlreadyExistsError, NotModifiedError, PreconditionError):
            raise
        except FileNotFoundError as error:
            self._check_bucket(error)
            raise
        except ValueError as error:
            if "path" not in str(error).lower():
                raise
            raise BadInput(f"{self._what}: expected a name without empty parts, '.' and '..'") from None
        except InvalidPathError:
            raise BadInput(
                f"{self._what}: the store has an object whose name has empty parts, '.', '..' or control characters; "
                "remove it: it prevents listing the objects beside it"
            ) from None
        except (BaseError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of our own disk
            self._check_bucket(error)
            raise NotReady(self._line(_reason(error))) from None

    def _check_bucket(self, error: Exception) -> None:
        if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
            raise BadInput(f"{self._what}: bucket {self._bucket[:64]!r} does not exist") from None

    def _check_size(self, key: str, got: int, limit: int) -> None:
        if got > limit:
            raise Corrupt(f"{key.rpartition('/')[2][:64]}: expected at most {limit} bytes, got {got}")

    def _line(self, reason: str) -> str:
        return f"{self._what}: the object store cannot be reached: {reason}"


def _run_alone(act: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end, also if the caller's thread has an event loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(act())
    with ThreadPoolExecutor(1, "freshet-listing") as pool:
        return pool.submit(lambda: asyncio.run(act())).result()


def _key(key: str) -> str:
    if not key or key.startswith("/"):
        raise BadInput("expected a key of an object, relative and not empty")
    if len(key.encode(errors="replace")) > MAX_KEY_NBYTES:
        raise BadInput(f"expected a key of an object of at most {MAX_KEY_NBYTES} bytes, got a longer one")
    return key


def _status(error: Exception) -> int:
    match = _STATUS.search(str(error))
    return int(match[1]) if match else 0


def _reason(error: Exception) -> str:
    """Return the reason of an error in our own words: the library's text contains URLs, which may be signed."""
    text = str(error)
    if "169.254.169.254" in text or "metadata.google.internal" in text or "CredentialNotFound" in text:
        return "no credentials in the environment"
    status = _status(error)
    if status in (401, 403):
        return f"it refuses these credentials ({status})"
    if status:
        return f"it answers with status {status}"
    if "incorrectly configured region" in text:
        return "the bucket is in another region than AWS_REGION says"
    kinds = {"kind: Timeout": "no answer in time", "timed out": "no answer in time", "kind: Connect": "no connection"}
    return next((said for kind, said in kinds.items() if kind in text), "the connection broke")
