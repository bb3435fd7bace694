"""The file of --notify.config: rules, receivers, and how the address of an owner is found.

A mistake is an error with its line. A file that changes is read again; with a mistake in it, the last good one counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuledger.config import durations, yamlfile
from gpuledger.config.yamlfile import Node
from gpuledger.errors import ConfigError
from gpuledger.net.address import Address, parse_url
from gpuledger.tools.prices import Prices, amount, currency

LARGEST_FILE = 1_000_000
KEEP_UNTIL = "gpuledger.io/keep-until"
SLACK, ALERTMANAGER = FORMATS = ("slack", "alertmanager")
DOMAIN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
MAPPING_KEYS = "namespace/pod, namespace, account or user"


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
    below_for_s: float = 86400.0
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
    longest_exemption_s: float = 90 * 86400.0
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
    known = ("rules", "webhooks", "events", "mail", "owners", "exempt", "kubernetes", "state", "prices")
    fields = root.fields("the file", known)
    for name in ("rules", "state"):
        if name not in fields:
            raise root.error(f"{name} is missing", "docs/notify.md has an example")
    rules = fields["rules"].fields("rules", ("idle", "below_entitlement", "below_entitlement_for"))
    if not {"idle", "below_entitlement"} & rules.keys():
        raise fields["rules"].error("there is no rule", "write idle: 1h, or below_entitlement: 5%")
    owners = fields["owners"].fields("owners", ("annotation", "mapping", "domain")) if "owners" in fields else {}
    exempt = fields["exempt"].fields("exempt", ("annotation", "longest")) if "exempt" in fields else {}
    kubernetes = fields["kubernetes"].fields("kubernetes", ("kubeconfig",)) if "kubernetes" in fields else None
    config = NotifyConfig(
        idle_s=_seconds(rules["idle"]) if "idle" in rules else None,
        below=_part(rules["below_entitlement"]) if "below_entitlement" in rules else None,
        below_for_s=_seconds(rules["below_entitlement_for"]) if "below_entitlement_for" in rules else 86400.0,
        webhooks=tuple(_webhook(node, folder) for node in fields["webhooks"].items("webhooks"))
        if "webhooks" in fields
        else (),
        events="events" in fields and fields["events"].boolean("events"),
        mail=_mail(fields["mail"]) if "mail" in fields else None,
        annotation=owners["annotation"].text("annotation") if "annotation" in owners else "",
        mapping=_path(owners["mapping"], folder) if "mapping" in owners else "",
        user_domain=_domain(owners["domain"]) if "domain" in owners else "",
        keep_until=exempt["annotation"].text("annotation") if "annotation" in exempt else KEEP_UNTIL,
        longest_exemption_s=_seconds(exempt["longest"]) if "longest" in exempt else 90 * 86400.0,
        kubeconfig=None if kubernetes is None else _path(kubernetes["kubeconfig"], folder) if kubernetes else "",
        state=_path(fields["state"], folder),
        prices=_prices(fields["prices"]) if "prices" in fields else Prices(),
    )
    if not (config.webhooks or config.events or config.mail):
        raise root.error("there is no receiver", "add webhooks, events or mail")
    if config.kubeconfig is None and (config.events or config.annotation):
        raise root.error("events and annotations need the API server", "add kubernetes: {} for the pod's own account")
    return config


def addresses(path: str) -> Mapping[str, str]:
    """The file that maps owners to addresses: one key and one address on each line. Raises ConfigError."""
    root = yamlfile.load(path, LARGEST_FILE)
    return {} if root is None else {key: value.text("an address") for key, _, value in root.entries(MAPPING_KEYS)}


def _webhook(node: Node, folder: str) -> Webhook:
    fields = node.fields("a webhook", ("url", "url_file", "format"))
    if len({"url", "url_file"} & fields.keys()) != 1:
        raise node.error("a webhook needs one of url and url_file")
    if "url" in fields:
        url = fields["url"].text("url")
    else:
        try:
            url = Path(_path(fields["url_file"], folder)).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            raise fields["url_file"].error("url_file cannot be read") from None
    word = fields["format"].text("format") if "format" in fields else SLACK
    if word not in FORMATS:
        raise fields["format"].error(f"unknown format {word}", f"use {' or '.join(FORMATS)}")
    place = parse_url(url)
    if place is None:
        raise node.error("its URL is not http://host:port/path or https://host/path")
    return Webhook(place[0], place[1] or "/", word)


def _mail(node: Node) -> Mail:
    fields = node.fields("mail", ("sendmail", "from", "domains"))
    for name in ("from", "domains"):
        if name not in fields:
            raise node.error(f"{name} is missing", "write from: gpuledger@example.org and domains: [example.org]")
    sendmail = fields["sendmail"].text("sendmail") if "sendmail" in fields else "/usr/sbin/sendmail"
    domains = frozenset(domain.lower() for domain in fields["domains"].texts("domains"))
    return Mail(sendmail, fields["from"].text("from"), domains)


def _prices(node: Node) -> Prices:
    fields = node.fields("prices", ("kwh", "gpu_hour", "currency"))
    try:
        kwh, gpu_hour = (amount(fields[name].text(name)) if name in fields else "" for name in ("kwh", "gpu_hour"))
        unit = currency(fields["currency"].text("currency")) if "currency" in fields else ""
    except ValueError as error:
        raise node.error(f"a price {error}") from None
    return Prices(float(kwh) if kwh else None, float(gpu_hour) if gpu_hour else None, unit)


def _seconds(node: Node) -> float:
    try:
        return durations.parse(node.text("a duration"))
    except ValueError as error:
        raise node.error(f"a duration {error}") from None


def _part(node: Node) -> float:
    text = node.text("a percentage")
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,3})?) ?%", text)
    if match is None or not 0 < float(match[1]) <= 100:
        raise node.error(f"{text} is not a percentage", "write 5%")
    return float(match[1]) / 100


def _domain(node: Node) -> str:
    domain = node.text("domain")
    if not DOMAIN.fullmatch(domain):
        raise node.error(f"{domain} is not a domain", "write example.org")
    return domain


def _path(node: Node, folder: str) -> str:
    return os.path.join(folder, node.text("a path"))  # noqa: PTH118 - text
