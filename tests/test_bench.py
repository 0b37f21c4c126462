"""The bench asks for nothing that it does not need, and explains what it shows."""

from pathlib import Path

import pytest

from bench import report, roster


def chosen(*names: str) -> list[roster.Peer]:
    return [peer for peer in (*roster.ours(), *roster.peers()) if peer.name in names]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("duet-rpc", "duet-rpc dispatcher", "codec alone", "the body itself"), None),
        (("duet-rpc", "pygls"), "installing the Python peers"),
    ],
)
def test_only_what_is_needed_is_installed(
    names: tuple[str, ...], told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "ENVIRONMENT", tmp_path / "not installed yet")
    assert next(roster.set_up(chosen(*names)), None) == told


def test_a_bare_client_needs_the_server_that_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    told = "npm is not installed: the Node peers are left out"
    assert list(roster.set_up(chosen("vscode-jsonrpc bare client"))) == [told]
    assert list(roster.set_up(chosen("duet-rpc bare client"))) == []


def test_each_table_on_the_terminal_has_the_sentence_that_explains_it() -> None:
    ours, codec = chosen("duet-rpc dispatcher", "codec alone")
    results = report.Results([ours, codec])
    results.add("W7", ours, {"request": 1.62e-6})
    results.add("W7", codec, {"request": 1e-6})
    first, ratios, second, reached, goals = report.summary(results).split("\n\n")
    assert "below 1× the other is better" in first and "0.617×" in ratios
    assert "our figure divided by the other's" in second and "1.62×" in goals
    assert reached == "0 of 1 reached."
