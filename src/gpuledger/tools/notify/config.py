"""The file of --notify.config: rules, receivers, and how the address of an owner is found.

A mistake is an error with its line. A file that changes is read again; with a mistake in it, the last good one counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gpuledger.config import durations, parsers, yamlfile
from gpuledger.config.yamlfile import Node, optional
from gpuledger.errors import ConfigError
from gpuledger.net.address import Address, parse_url
from gpuledger.tools.prices import Prices, amount, currency

LARGEST_FILE = 1_000_000
KEEP_UNTIL = "gpuledger.io/keep-until"
DAY_S = 86400.0
SLACK, ALERTMANAGER = FORMATS = ("slack", "alertmanager")


@dataclass(frozen=True, slots=True)
class Webhook:
    """A server that gets each message as JSON."""

    address: Address
    path: str
    format: str


@dataclass(frozen=True, slots=True)
class Mail:
    """A local sendmail. Only addresses of these domains get mail: tenants choose the annotations of their pods."""

    sendmail: str
    sender: str
    domains: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConfig:
    """The content of the file."""

    idle_s: float | None = None
    """Idle time of an allocation after which its owner gets a message; None without this rule."""
    below: float | None = None
    """Part of the entitlement below which an owner gets a message; None without this rule."""
    below_for_s: float = DAY_S
    webhooks: tuple[Webhook, ...] = ()
    events: bool = False
    """Whether pods get an Event."""
    mail: Mail | None = None
    annotation: str = ""
    """The annotation or label of a pod that has the address of its owner."""
    mapping: str = ""
    user_domain: str = ""
    """Domain of the addresses of users of this cluster's hosts; empty for local users."""
    keep_until: str = KEEP_UNTIL
    longest_exemption_s: float = 90 * DAY_S
    kubeconfig: str | None = None
    """None: pods are not read. Empty: the service account of this pod."""
    state: str = ""
    prices: Prices = field(default_factory=Prices)


def load(path: str) -> NotifyConfig:
    """The configuration. Raises ConfigError."""
    root = yamlfile.load(path, LARGEST_FILE)
    if root is None:
        raise ConfigError(f"{path} is empty", "docs/notify.md has an example")
    return parse(root, os.path.dirname(path))  # noqa: PTH120 - text


def parse(root: Node, folder: str) -> NotifyConfig:
    """The configuration in a file of this folder. Raises ConfigError."""
    path = partial(os.path.join, folder)
    known = ("rules", "webhooks", "events", "mail", "owners", "exempt", "kubernetes", "state", "prices")
    fields = root.fields("the file", known, required=("rules", "state"))

    def section(name: str, *known: str) -> dict[str, Node]:
        return fields[name].fields(name, known) if name in fields else {}

    rules = section("rules", "idle", "below_entitlement", "below_entitlement_for")
    owners, exempt = section("owners", "annotation", "mapping", "domain"), section("exempt", "annotation", "longest")
    kubernetes, prices = section("kubernetes", "kubeconfig"), section("prices", "kwh", "gpu_hour", "currency")
    config = NotifyConfig(
        idle_s=optional(rules, "idle", durations.parse, None),
        below=optional(rules, "below_entitlement", _part, None),
        below_for_s=optional(rules, "below_entitlement_for", durations.parse, DAY_S),
        webhooks=tuple(_webhook(node, folder) for node in fields["webhooks"].items("webhooks"))
        if "webhooks" in fields else (),
        events="events" in fields and fields["events"].boolean("events"),
        mail=_mail(fields["mail"]) if "mail" in fields else None,
        annotation=optional(owners, "annotation", str, ""),
        mapping=optional(owners, "mapping", path, ""),
        user_domain=optional(owners, "domain", parsers.domain, ""),
        keep_until=optional(exempt, "annotation", str, KEEP_UNTIL),
        longest_exemption_s=optional(exempt, "longest", durations.parse, 90 * DAY_S),
        kubeconfig=optional(kubernetes, "kubeconfig", path, "") if "kubernetes" in fields else None,
        state=fields["state"].parsed(path),
        prices=Prices.of(
            optional(prices, "kwh", amount, ""), optional(prices, "gpu_hour", amount, ""),
            optional(prices, "currency", currency, ""),
        ),
    )  # fmt: skip
    if config.idle_s is None and config.below is None:
        raise fields["rules"].error("there is no rule", "write idle: 1h, or below_entitlement: 5%")
    if not (config.webhooks or config.events or config.mail):
        raise root.error("there is no receiver", "add webhooks, events or mail")
    if config.kubeconfig is None and (config.events or config.annotation):
        raise root.error("events and annotations need the API server", "add kubernetes: {} for the pod's own account")
    return config


def addresses(path: str) -> Mapping[str, str]:
    """The file that maps owners to addresses: one key and one address on each line. Raises ConfigError."""
    root = yamlfile.load(path, LARGEST_FILE)
    name = "namespace/pod, namespace, account or user"
    return {} if root is None else {key: value.text("an address") for key, _, value in root.entries(name)}


def _webhook(node: Node, folder: str) -> Webhook:
    fields = node.fields("a webhook", ("url", "url_file", "format"))
    if len({"url", "url_file"} & fields.keys()) != 1:
        raise node.error("a webhook needs one of url and url_file")
    try:
        url = optional(fields, "url_file", lambda name: Path(folder, name).read_text(encoding="ascii").strip(), "")
    except OSError:
        raise fields["url_file"].error("url_file cannot be read") from None
    place = parse_url(url or fields["url"].text("url"))
    if place is None:
        raise node.error("its URL is not http://host:port/path or https://host/path")
    return Webhook(place[0], place[1] or "/", optional(fields, "format", parsers.OneOf(*FORMATS), SLACK))


def _mail(node: Node) -> Mail:
    fields = node.fields("mail", ("sendmail", "from", "domains"), required=("from", "domains"))
    domains = frozenset(domain.lower() for domain in fields["domains"].texts("domains"))
    return Mail(optional(fields, "sendmail", str, "/usr/sbin/sendmail"), fields["from"].text("from"), domains)


def _part(text: str) -> float:
    part = float(parsers.percentage(text).removesuffix("%")) / 100
    if not part:
        raise ValueError("is no part; write it as 5%")
    return part
