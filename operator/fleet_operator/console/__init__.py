"""The console: a read-only web UI about fleets, for users who have permission to read them.

`views` are pure projections of cached objects and observations. `access` asks the API server who a viewer is and what
the viewer may read. `server` answers requests on its own thread, and `feed` sends changes to open pages. Decision:
docs/decisions/0065-console.md.
"""

from typing import Final

CONSOLE_LABEL: Final = "consumerfleet.io/console"
"""Label of the leading operator pod, whose console answers; the console's Service selects this label."""
