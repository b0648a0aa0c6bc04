"""Logging for Prometheus: an HTTP endpoint that it reads."""

import re
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from components.trackers.named import address_of
from orchestra import RunDirectory, log, write_json

PORT = 9464
"""The default port."""


class PrometheusLogger:
    """Serves the newest figures as gauges `orchestra_NAME`, labelled with experiment and run.

    The address is in `prometheus.json` of the run's directory.

    Args:
        run: the run.
        resumes_at: unused.
        argument: PORT or HOST:PORT; by default 9464, for this host alone. With port 0 the system chooses one.
        offline: unused: nothing is sent.

    Raises:
        OSError: the port is in use.
    """

    def __init__(self, run: RunDirectory, resumes_at: int | None, *, argument: str, offline: bool) -> None:
        host, port = address_of(argument or str(PORT))
        self._registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._labels = {"experiment": run.path.parent.name, "run": run.path.name}
        self._server, self._thread = start_http_server(port, host, registry=self._registry)
        url = f"http://{host}:{self._server.server_port}/metrics"
        write_json(run.path / "prometheus.json", {"url": url})
        log.get().info("Prometheus can read figures", url=url)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Set the gauges."""
        for key, value in {**figures, "env_steps": step}.items():
            name = "orchestra_" + re.sub(r"\W", "_", key)
            if name not in self._gauges:
                self._gauges[name] = Gauge(name, key, list(self._labels), registry=self._registry)
            self._gauges[name].labels(**self._labels).set(value)

    def close(self) -> None:
        """Close the endpoint."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
