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
        """Start as if a delta had just been published.

        Args:
            now_s: Clock.
            changed: Returns whether something besides rows is to be published, such as an entity.
        """
        self._publish, self._now_s, self._changed = publish, now_s, changed
        self.published()

    def learned(self, rows: int) -> None:
        self.rows += rows

    def published(self) -> None:
        """Reset all rules after a publish."""
        self.rows, self._since_s = 0, self._now_s()
        self._asked_s = self._since_s

    def due(self) -> bool:
        """Return True if a delta is to be published now."""
        publish = self._publish
        if not self.rows:
            return self._changed_alone()
        if publish.delta_rows and self.rows >= publish.delta_rows:
            return True
        return bool(publish.delta_seconds) and self._now_s() - self._since_s >= publish.delta_seconds

    def left(self) -> bool:
        """Return True if there is something to publish at the end."""
        return self.rows > 0 or self._changed()

    def _changed_alone(self) -> bool:
        """Return True if, without rows, something besides has waited for long enough; asks every delta_seconds."""
        now_s, wait_s = self._now_s(), self._publish.delta_seconds
        if not wait_s or now_s - self._asked_s < wait_s:
            return False
        self._asked_s = now_s
        return self._changed()
