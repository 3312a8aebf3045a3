"""Error messages for failures of the hub and its cache.

The texts of the exceptions are left out, as they may contain signed URLs or a token.
"""

import errno
import traceback
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import constants, get_token
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from shared.errors import ModelError

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BUSY = (408, 429)


def endpoint() -> str:
    """Return the URL of the hub without credentials."""
    parts = urlsplit(constants.ENDPOINT)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def is_unreachable(error: Exception) -> bool:
    """Whether the hub could not be reached or is overloaded, so that a retry may succeed."""
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        return status >= 500 or status in _BUSY
    return isinstance(error, (httpx2.TransportError, OfflineModeIsEnabled))


def describe(error: Exception, repo: str, revision: str | None) -> str:
    """Return a message that says what failed, and what to do."""
    match error:
        case ModelError():
            return error.message
        case OfflineModeIsEnabled():
            return f"HF_HUB_OFFLINE is set, and the cache has no complete copy of {repo}"
        case HfHubHTTPError():
            return _describe_response(error, repo, revision)
        case LocalEntryNotFoundError(__cause__=Exception() as cause):
            return describe(cause, repo, revision)
        case httpx2.TransportError():
            # The text of a ConnectError is the system's and contains no URL.
            reason = f": {error}" if isinstance(error, httpx2.ConnectError) else ""
            return (
                f"the hub at {endpoint()} cannot be reached ({type(error).__name__}{reason}); "
                "check the network and HF_ENDPOINT, then try again"
            )
        case httpx2.InvalidURL():
            return f"HF_ENDPOINT is not a URL: {endpoint()}"
        case OSError():
            return _describe_disk(error)
        case _:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{last.filename}, line {last.lineno}"
            return f"internal error: {type(error).__name__} in {where}"


def _describe_response(error: HfHubHTTPError, repo: str, revision: str | None) -> str:
    status = error.response.status_code
    page = f"{endpoint()}/{repo}"
    log_in = (
        "the token of this machine (HF_TOKEN, or that of `hf auth login`) has no access"
        if get_token()
        else "set HF_TOKEN or run `hf auth login` on this machine"
    )
    match error:
        case GatedRepoError():
            return f"{repo} is gated: accept its licence on {page}; {log_in}"
        case DisabledRepoError():
            return f"the hub has disabled {repo}; choose another model"
        case RevisionNotFoundError():
            return f"{repo} has no revision {revision or 'main'}; {page}/commits lists them"
        case RepositoryNotFoundError():
            return f"the hub at {endpoint()} has no model {repo}, or it is private: {log_in}"
    if status == 401 and "Invalid credentials" in (error.server_message or ""):
        return "the hub does not accept the token (HF_TOKEN, or that of `hf auth login`); renew it"
    if status == 401:
        return f"the hub at {endpoint()} has no model {repo}, or it is private: {log_in}"
    if status == 403:
        return f"the hub refuses {repo}: accept its licence on {page}, if it has one; {log_in}"
    if status == 404:
        return f"the hub at {endpoint()} has no model {repo}, or a file of it is gone"
    return f"the hub at {endpoint()} answers with status {status}; try again later"


def _describe_disk(error: OSError) -> str:
    folder = constants.HF_HUB_CACHE
    if error.errno in _DISK_FULL:
        return (
            f"the disk at {folder} is full ({error.strerror}); free disk space, or set "
            "HF_HUB_CACHE to another folder. The partial download is kept"
        )
    return f"the cache folder {folder} cannot be used: {error.strerror or type(error).__name__}"
