"""The file of --notify.config: what it says, and its mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.config import yamlfile
from gpuledger.errors import ConfigError
from gpuledger.net.address import Address
from gpuledger.tools.notify.config import Mail, NotifyConfig, Webhook, load, parse
from gpuledger.tools.prices import Prices

MINIMAL = "{rules: {idle: 1h}, state: s, webhooks: [{url: 'http://h/x'}]%s}"


def config(text: str, folder: str = "/etc") -> NotifyConfig:
    """The configuration in a text."""
    root = yamlfile.parse(text, "notify.yml")
    assert root is not None
    return parse(root, folder)


def test_everything_at_once(tmp_path: Path) -> None:
    """Each field arrives where it belongs; paths are relative to the file."""
    (tmp_path / "hook").write_text("https://hooks.example.org/secret\n")
    path = tmp_path / "notify.yml"
    path.write_text("""
rules: {idle: 90m, below_entitlement: 5%, below_entitlement_for: 12h}
webhooks:
  - url_file: hook
  - {url: "http://127.0.0.1:9000/alerts", format: alertmanager}
events: true
mail: {from: gpu@example.org, domains: [Example.org], sendmail: /bin/mail}
owners: {annotation: example.org/owner, mapping: owners.yml, domain: example.org}
exempt: {annotation: example.org/keep, longest: 30d}
kubernetes: {}
state: state.json
prices: {kwh: 0.30, gpu_hour: 2, currency: EUR}
""")
    assert load(str(path)) == NotifyConfig(
        idle_s=5400.0, below=0.05, below_for_s=43200.0,
        webhooks=(
            Webhook(Address(host="hooks.example.org", port=443, tls=True), "/secret", "slack"),
            Webhook(Address(host="127.0.0.1", port=9000), "/alerts", "alertmanager"),
        ),
        events=True, mail=Mail("/bin/mail", "gpu@example.org", frozenset({"example.org"})),
        annotation="example.org/owner", mapping=str(tmp_path / "owners.yml"), user_domain="example.org",
        keep_until="example.org/keep", longest_exemption_s=30 * 86400.0, kubeconfig="",
        state=str(tmp_path / "state.json"), prices=Prices(0.3, 2.0, "EUR"),
    )  # fmt: skip


MISTAKES = [
    ("{state: s}", "rules is missing"),
    ("{rules: {idle: 1h}}", "state is missing"),
    ("{rules: {}, state: s}", "there is no rule"),
    ("{rules: {idle: 1h}, state: s}", "there is no receiver"),
    ("{rules: {idle: soon}, state: s}", "soon is not a duration; write it as"),
    ("{rules: {below_entitlement: 5}, state: s}", "5 is not a percentage; write it as 5%"),
    ("{rules: {below_entitlement: 0%}, state: s}", "0% is no part; write it as 5%"),
    ("{rules: {idel: 1h}, state: s}", "unknown field idel in rules; did you mean idle?"),
    ("{rules: {idle: 1h}, state: s, webhooks: [{format: slack}]}", "a webhook needs one of url and url_file"),
    ("{rules: {idle: 1h}, state: s, webhooks: [{url: 'ftp://h'}]}", "its URL is not http://host:port/path"),
    ("{rules: {idle: 1h}, state: s, webhooks: [{url_file: /nothing}]}", "url_file cannot be read"),
    (
        "{rules: {idle: 1h}, state: s, webhooks: [{url: 'http://h', format: teams}]}",
        "teams is not one of slack, alertmanager",
    ),
    ("{rules: {idle: 1h}, state: s, mail: {from: a@b}}", "domains is missing"),
    (MINIMAL % ", events: true", "events and annotations need the API server"),
    (MINIMAL % ", owners: {annotation: a}", "events and annotations need the API server"),
    (MINIMAL % ", owners: {domain: 'a b'}", "a b is not a domain"),
    (MINIMAL % ", prices: {kwh: much}", "much is not an amount"),
]


@pytest.mark.parametrize(("text", "error"), MISTAKES)
def test_mistakes(text: str, error: str) -> None:
    """Each names its line."""
    with pytest.raises(ConfigError, match=r"notify\.yml, line 1: ") as raised:
        config(text)
    assert error in str(raised.value)


def test_an_empty_file(tmp_path: Path) -> None:
    """It is a mistake."""
    (tmp_path / "n.yml").write_text("# nothing\n")
    with pytest.raises(ConfigError, match="is empty"):
        load(str(tmp_path / "n.yml"))
