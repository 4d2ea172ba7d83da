"""A result as one self-contained HTML page: what a terminal shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from io import StringIO
from typing import Any

from rich.console import Console, RenderableType

from .records import Results
from .tables import rendered

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.4 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem}
svg{max-width:100%;height:auto}svg text{font:12px system-ui,sans-serif}
pre{font-size:12px;line-height:1.25;overflow-x:auto}
@media (prefers-color-scheme:dark){pre{filter:brightness(1.8)}}
"""


def render_report(found: Results) -> str:
    """Render a result as one self-contained HTML page."""
    headline = f"outrider bench: {found.environment.get('target', 'no model')}"
    return page(headline, rendered(found), found.environment)


def page(
    headline: str,
    shown: RenderableType,
    facts: Mapping[str, Any],
    *,
    above: str = "",
    below: str = "",
) -> str:
    """Put a page together of what a terminal shows, HTML around it, and a JSON object."""
    console = Console(file=StringIO(), record=True, width=120, highlight=False)
    console.print(shown)
    text = console.export_html(code_format="<pre>{code}</pre>", inline_styles=True)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(headline)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(headline)}</h1>{above}{text}{below}"
        "<details><summary>As JSON</summary>"
        f"<pre>{escape(json.dumps(facts, indent=2))}</pre></details></body></html>\n"
    )
