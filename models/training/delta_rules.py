"""Decide when a delta is due: by rows or by time. Takes a clock."""

from __future__ import annotations

from collections.abc import Callable

from freshet_serving.models.config.publish_section import PublishConfig


class DeltaRules:
    """The rules of [publish], applied to the training since the last delta."""

    def __init__(
        self,
        publish: PublishConfig,
        now_s: Callable[[], float],
        changed: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start as after a delta; `changed` returns whether something besides rows is to be published."""
        self._publish, self._now_s, self._changed = publish, now_s, changed
        self.published()

    def learned(self, rows: int) -> None:
        self.rows += rows

    def published(self) -> None:
        self.rows, self._since_s = 0, self._now_s()
        self._asked_s = self._since_s

    def due(self) -> bool:
        """Return True if a delta is due."""
        publish = self._publish
        if not self.rows:
            return self._changed_alone()
        if publish.delta_rows and self.rows >= publish.delta_rows:
            return True
        return bool(publish.delta_seconds) and self._now_s() - self._since_s >= publish.delta_seconds

    def left(self) -> bool:
        return self.rows > 0 or self._changed()

    def _changed_alone(self) -> bool:
        """Return True if something besides rows has waited long enough; asks every delta_seconds."""
        now_s, wait_s = self._now_s(), self._publish.delta_seconds
        if not wait_s or now_s - self._asked_s < wait_s:
            return False
        self._asked_s = now_s
        return self._changed()
