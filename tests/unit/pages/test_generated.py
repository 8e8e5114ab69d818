"""The generated pages are up to date, and show what the code has."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fleet_operator.api.v1alpha1.explanations import EXPLANATIONS, GROUPS, Explanation
from pages import conditions
from pages.__main__ import ROOT, generated, main
from pages.fields import fields_of, fields_page, type_of, values_of
from pages.markdown import escaped, headings, table


def test_generated_pages_are_up_to_date() -> None:
    """If this fails, run `make pages`."""
    old = {str(path.relative_to(ROOT)) for path, text in generated().items() if path.read_text() != text}
    assert old == set()


def test_check_names_the_page_that_differs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / "conditions.md"
    monkeypatch.setattr("pages.__main__.generated", lambda: {page: page.read_text() + "more"})
    before = page.read_text()
    assert main(["--check"]) == 1
    assert capsys.readouterr().out == "docs/conditions.md: out of date, run `make pages`\n"
    assert page.read_text() == before
    monkeypatch.setattr("pages.__main__.generated", lambda: {page: before})
    assert main(["--check"]) == 0


def test_every_group_of_words_has_a_title() -> None:
    assert list(conditions.GROUPS) == list(GROUPS)


def test_page_has_a_row_for_every_word() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/conditions.md").read_text(), re.MULTILINE)
    assert rows == list(EXPLANATIONS)


def test_row_has_meaning_section_and_command() -> None:
    word = Explanation("Stuck", "A *record*_waits.", "kubectl get pods | head", "retries.md#budget")
    page = conditions.conditions_page({"loss": [word]}, {"retries.md": "# Retries\n\n## Budget\n"})
    row = r"| `Stuck` | A \*record\*\_waits. [Budget](retries.md#budget) | `kubectl get pods \| head` |"
    assert row in page.splitlines()


CRD: dict[str, Any] = {
    "spec": {
        "names": {"kind": "Shop"},
        "versions": [
            {
                "schema": {
                    "openAPIV3Schema": {
                        "description": "A shop.",
                        "properties": {
                            "spec": {
                                "required": ["size"],
                                "properties": {
                                    "size": {
                                        "type": "integer",
                                        "minimum": 1,
                                        "maximum": 9,
                                        "description": "Its <size>.",
                                    },
                                    "open": {"type": "boolean", "default": True, "description": "Open or not."},
                                    "rooms": {
                                        "type": "array",
                                        "maxItems": 3,
                                        "description": "Its rooms.",
                                        "items": {
                                            "type": "object",
                                            "properties": {"kind": {"enum": ["A", "B"], "description": "A | B."}},
                                        },
                                    },
                                    "pod": {
                                        "type": "object",
                                        "description": "A pod.",
                                        "properties": {"hostIP": {"type": "string"}},
                                    },
                                },
                            },
                            "status": {"properties": {}},
                        },
                    }
                }
            }
        ],
    }
}


def test_fields_have_type_default_bounds_and_meaning() -> None:
    lines = fields_page([CRD]).splitlines()
    assert "| `spec.size` | integer | required | 1 to 9 | Its &lt;size>. |" in lines
    assert "| `spec.open` | boolean | `true` |  | Open or not. |" in lines
    assert "| `spec.rooms` | list of objects |  | at most 3 items | Its rooms. |" in lines
    assert r"| `spec.rooms[].kind` | any |  | `A`, `B` | A \| B. |" in lines


def test_fields_of_kubernetes_types_are_left_out() -> None:
    schema = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert [field.path for field in fields_of(schema, "spec")][-1] == "spec.pod"


def test_types_and_values_are_words() -> None:
    assert type_of({"x-kubernetes-int-or-string": True}) == "integer or string"
    assert type_of({"type": "object", "additionalProperties": {"type": "string"}}) == "map of strings"
    assert type_of({"type": "string", "format": "date-time"}) == "time"
    assert list(values_of({"type": "array", "items": {"maxLength": 5}})) == ["each at most 5 characters"]
    assert list(values_of({"minProperties": 1})) == ["at least 1 entries"]


def test_code_stays_as_it_is_and_text_is_escaped() -> None:
    assert escaped("the `_a*` of\n_b*") == r"the `_a*` of \_b\*"
    assert table(["x"], [["a|b"]]) == ["| x |", "| --- |", r"| a\|b |"]


def test_headings_of_a_page_have_githubs_anchors() -> None:
    page = "# Title\n\n```\n# no heading\n```\n\n## A worker's page /member\n"
    assert headings(page) == {"": "Title", "title": "Title", "a-workers-page-member": "A worker's page /member"}
