"""The report of a run as one HTML file that needs no other: the tables of report.md, its pictures, and some more.

It knows nothing about how numbers are computed: tables come from report.py as rows of text, pictures as files in the
run folder. Called by report.py.
"""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Sequence
from pathlib import Path

HTML_FILE = "report.html"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
td, th { border: 1px solid #ccc; padding: .3rem .6rem; text-align: right; }
td:first-child, th:first-child { text-align: left; }
th { background: #f4f4f4; } img { max-width: 100%; }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd; } th { background: #282828; }
td, th { border-color: #444; } img { background: #fff; } }
"""

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Heading, column titles, rows."""


def write_html(run_dir: Path, title: str, tables: Sequence[Table], pictures: Sequence[tuple[str, str]]) -> Path:
    """Write `report.html` in one rename; `pictures` are (heading, file name), and those not there are left out."""
    parts = [_table(*table) for table in tables]
    parts += [_picture(heading, run_dir / name) for heading, name in pictures if (run_dir / name).is_file()]
    text = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style><h1>{html.escape(title)}</h1>{''.join(parts)}</html>\n"
    )
    path = run_dir / HTML_FILE
    scratch = path.with_suffix(".tmp")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)
    return path


def _table(heading: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<h2>{html.escape(heading)}</h2><table><tr>{head}</tr>{body}</table>"


def _cell(text: str) -> str:
    inner = html.escape(text.strip("*"))
    return f"<b>{inner}</b>" if text.startswith("**") else inner


def _picture(heading: str, path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<h2>{html.escape(heading)}</h2><img alt="{html.escape(heading)}" src="data:image/png;base64,{data}">'
