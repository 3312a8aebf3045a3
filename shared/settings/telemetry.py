"""Where traces go."""

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from shared.settings.base import SettingsSection


def _http_url(url: str) -> str:
    """Raise ValueError if `url` is not an HTTP URL; the error does not show the URL, which may have
    a password."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https") or not rest or rest.startswith(("/", ":")):
        raise ValueError("an OTLP endpoint is http://HOST:PORT or https://HOST:PORT")
    return url


class TelemetrySettings(SettingsSection):
    """Traces for OpenTelemetry; needs the extra `telemetry`. `otlp_endpoint`: of a collector, for
    OTLP over HTTP; without it there are no traces. `headers`: sent to the collector.
    `sample_ratio`: the share of the traces that begin here; where a client's `traceparent` says
    whether its trace is sampled, that decides."""

    otlp_endpoint: Annotated[str, AfterValidator(_http_url)] | None = None
    headers: dict[str, SecretStr] = {}
    sample_ratio: float = Field(1.0, ge=0, le=1)

    @property
    def traces_url(self) -> str | None:
        """The URL to which spans are sent."""
        if self.otlp_endpoint is None or self.otlp_endpoint.endswith("/v1/traces"):
            return self.otlp_endpoint
        return f"{self.otlp_endpoint.rstrip('/')}/v1/traces"
