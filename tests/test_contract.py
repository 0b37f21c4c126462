"""docs/contract.md is kept in order: every clause has its own id, and a test file that shows it.

Tests of conformance cite the clauses that they show: `@pytest.mark.clause("framing-13")`.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "contract.md").read_text("utf-8")

# Clauses that no test shows yet.
NOT_SHOWN: set[str] = set()


def clauses() -> list[str]:
    """Return the ids of all clauses: list items, and rows of tables with a result in them."""
    found = re.findall(
        r"^- `([a-z]+-\d+)`|^\| `([a-z]+-\d+)` \| [^|]*\|[^|]*\|[^|]*\|$", TEXT, re.MULTILINE
    )
    return [item or row for item, row in found]


def citations() -> list[tuple[list[str], list[str]]]:
    """Return the rows of the tables of tests: clause ids, ranges in full, and paths."""
    found = []
    for what, where in re.findall(r"^\| (.*?) \| (`[a-z]+/.*) \|$", TEXT, re.MULTILINE):
        ids = []
        for first, last in re.findall(r"`([a-z]+-\d+)`(?: to `([a-z]+-\d+)`)?", what):
            subject, number = first.rsplit("-", 1)
            end = int(last.rsplit("-", 1)[1]) if last else int(number)
            ids += [f"{subject}-{n}" for n in range(int(number), end + 1)]
        found.append((ids, re.findall(r"`([\w/]+\.py)`", where)))
    return found


def test_clauses_of_a_subject_are_numbered_one_by_one() -> None:
    subjects: dict[str, list[int]] = {}
    for clause in clauses():
        subject, number = clause.rsplit("-", 1)
        subjects.setdefault(subject, []).append(int(number))
    assert len(subjects) > 10
    for subject, numbers in subjects.items():
        assert numbers == list(range(1, len(numbers) + 1)), subject


def test_every_clause_is_shown_by_a_test_file_that_exists() -> None:
    cited = citations()
    for _, paths in cited:
        assert paths and all((ROOT / "tests" / path).exists() for path in paths), paths
    shown = {clause for ids, _ in cited for clause in ids}
    assert shown <= set(clauses()), shown - set(clauses())
    assert set(clauses()) - shown == NOT_SHOWN


def marks(source: str) -> dict[str, list[str]]:
    """Return the clauses that each test of a file cites."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            found[node.name] = [
                argument.value
                for decorator in node.decorator_list
                if isinstance(decorator, ast.Call)
                and ast.unparse(decorator.func) == "pytest.mark.clause"
                for argument in decorator.args
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            ]
    return found


def test_every_test_of_conformance_cites_clauses_that_exist() -> None:
    files = sorted((ROOT / "tests" / "conformance").glob("test_*.py"))
    assert len(files) > 15
    for path in files:
        for name, cited in marks(path.read_text("utf-8")).items():
            assert cited, f"{path.name}: {name} cites no clause"
            assert set(cited) <= set(clauses()), f"{path.name}: {name} cites {cited}"


def test_a_file_of_conformance_shows_what_the_contract_says_it_shows() -> None:
    for ids, paths in citations():
        for path in paths:
            if path.startswith("conformance/"):
                cited = marks((ROOT / "tests" / path).read_text("utf-8")).values()
                assert {each for some in cited for each in some} & set(ids), (path, ids)
