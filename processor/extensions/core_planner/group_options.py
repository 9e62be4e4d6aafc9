"""Check the options of groups whose cores are planned."""

from __future__ import annotations

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.sessions.session_options import MAX_SESSIONS, SessionConfig


def check_groups(config: SessionConfig) -> None:
    """Raise BadInput unless all cores are left to the plan."""
    for name, group in config.groups.items():
        where = f"groups.{name[:64]}"
        if group.cpus:
            raise BadInput(f"{where}.cpus: cores are planned (p99_ms, share, min_cores): remove cpus")
        if group.sessions is not None:
            raise BadInput(f"{where}.sessions: cores are planned (p99_ms, share, min_cores): remove sessions")
        for field, value, most in (("p99_ms", group.p99_ms, 1e6), ("share", group.share, 1e6)):
            if value is not None and not 0 < value <= most:
                raise BadInput(f"{where}.{field}: expected more than 0, at most {most:.0f}, got {value:g}")
        if group.p99_ms is not None and group.share is not None:
            raise BadInput(f"{where}.share: expected p99_ms or share: a group with a budget shares no cores")
        if group.min_cores is not None and not 1 <= group.min_cores <= MAX_SESSIONS:
            raise BadInput(f"{where}.min_cores: expected 1 to {MAX_SESSIONS}, got {group.min_cores}")
