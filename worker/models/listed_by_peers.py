"""Listing of a repository from other workers, for when the hub cannot be reached."""

from collections.abc import Sequence

from shared.errors import ModelError
from shared.messages.files import FilesOffer
from worker.models.hub import HubFile, HubListing, is_commit, needed_names


def listed_by_peers(
    offers: Sequence[FilesOffer], repo: str, revision: str | None, *, code: bool
) -> HubListing | None:
    """Return the listing of a revision; None if no worker has all of its files.

    Raises:
        ModelError: the workers' listings differ, or the model contains Python code, for which only
            the hub is trusted.
    """
    complete = [offer for offer in offers if offer.commit and offer.files]
    listings = {_listing(offer, repo, code=code): offer.worker for offer in complete}
    if len(listings) > 1:
        raise ModelError(
            f"the hub cannot be reached, and workers have different files of {repo}, "
            f"{revision or 'main'}: {', '.join(sorted(listings.values()))}; name a commit as "
            "`revision` of this model in cluster.yaml, or try again when the hub can be reached"
        )
    for listing in listings:
        if is_commit(revision) and listing.commit != revision:
            return None
        if code and any(file.name.endswith(".py") for file in listing.needed):
            raise ModelError(
                f"the hub cannot be reached, and {repo} contains Python code, which is not "
                "downloaded from other workers; try again when the hub can be reached"
            )
        return listing
    return None


def _listing(offer: FilesOffer, repo: str, *, code: bool) -> HubListing:
    names = sorted(offer.files)
    needed = [
        HubFile(name, offer.contents.get(offer.files[name], 0), offer.files[name])
        for name in needed_names(names, code=code)
    ]
    return HubListing(repo, offer.commit, tuple(names), tuple(needed))
