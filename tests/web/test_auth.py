"""Basic authentication: valid and invalid logins, their cost, and the caches."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.web.access import Access, Revocable
from gpuledger.web.auth import (
    CACHE_SIZE,
    FAILURES_SIZE,
    QUEUE_PER_ADDRESS,
    QUEUE_SIZE,
    Logins,
)
from gpuledger.web.http import Request, Response
from gpuledger.web.responses import MANY_LOGINS, UNAUTHORIZED
from gpuledger.web.streams import Streams
from gpuledger.web.webconfig import WebConfig
from tests.web.logins import USERS, Compared, basic, basic_bytes

PAGE = Response(200, [("Content-Type", "text/html; charset=utf-8")], b"page")


def test_real_bcrypt() -> None:
    """The right password passes; a wrong one, another user's and an unknown user do not."""
    logins = Logins()

    assert logins.refusal(USERS, basic("alice", "wonder")) is None
    for user, password in (("alice", "Wonder"), ("bob", "wonder"), ("carol", "wonder"), ("", ""), ("alice", "")):
        assert logins.refusal(USERS, basic(user, password)) is UNAUTHORIZED
    assert UNAUTHORIZED.status == 401
    assert ("WWW-Authenticate", "Basic") in UNAUTHORIZED.headers


@pytest.mark.parametrize("version", ["2a", "2b", "2y"])
def test_hashes_of_all_tools(version: str) -> None:
    """Apache's tool writes $2y$, Python $2b$, others $2a$."""
    users = {"alice": USERS["alice"].replace("$2b$", f"${version}$")}

    assert Logins().refusal(users, basic("alice", "wonder")) is None
    assert Logins().refusal(users, basic("alice", "wander")) is UNAUTHORIZED


def test_long_passwords() -> None:
    """Bcrypt looks at 72 bytes, here as in other exporters."""
    users = {"alice": bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()}

    assert Logins().refusal(users, basic("alice", "x" * 100)) is None
    assert Logins().refusal(users, basic("alice", "x" * 71)) is UNAUTHORIZED


def test_what_was_found_is_cache() -> None:
    """Good and bad passwords are compared once; a new hash of the same user is compared again."""
    compared = Compared()
    logins = Logins(compared)
    for _ in range(3):
        assert logins.refusal(USERS, basic("alice", "wonder")) is None
        assert logins.refusal(USERS, basic("alice", "guess")) is UNAUTHORIZED
    assert len(compared.calls) == 2

    assert logins.refusal({"alice": "$2b$04$" + "c" * 53}, basic("alice", "wonder")) is UNAUTHORIZED
    assert len(compared.calls) == 3
    assert logins.refusal({"bob": USERS["bob"]}, basic("alice", "wonder")) is UNAUTHORIZED


def test_guesses_do_not_push_out_the_right_one() -> None:
    """Wrong passwords take a bounded amount of memory, and do not evict a valid login."""
    compared = Compared()
    logins = Logins(compared)
    assert logins.refusal(USERS, basic("alice", "wonder")) is None
    for guess in range(3 * CACHE_SIZE):
        logins.refusal(USERS, basic("alice", str(guess)))
    compared.calls.clear()

    assert logins.refusal(USERS, basic("alice", "wonder")) is None
    assert compared.calls == []
    assert sum(map(len, logins._cache.values())) == CACHE_SIZE + 1


def test_an_unknown_user_costs_a_comparison() -> None:
    """With a hash of the file, always the same for a name, so that the time of a response does not reveal users."""
    compared = Compared()
    logins = Logins(compared)

    for guess in ("one", "two", "wonder"):
        assert logins.refusal(USERS, basic("mallory", guess)) is UNAUTHORIZED

    assert [password for password, _ in compared.calls] == [b"one", b"two", b"wonder"]
    assert {hashed.decode() for _, hashed in compared.calls} < set(USERS.values())


@pytest.mark.parametrize(
    "header",
    [None, "", "Basic", "Basic ", "Bearer abc", "Basic %%%", "Basic YWxpY2U=", "Basic YWxpY2U6d29uZGVy, Basic YTpi",
     "Digest YWxpY2U6d29uZGVy", "Basic ÿ"],
)  # fmt: skip
def test_no_credentials(header: str | None) -> None:
    """Whatever is no user and password is refused without a comparison."""
    compared = Compared()

    assert Logins(compared).refusal(USERS, header) is UNAUTHORIZED
    assert compared.calls == []


def test_the_scheme_has_no_case() -> None:
    """RFC 7235: it may be written in any."""
    header = basic("alice", "wonder").replace("Basic", "bAsIc")

    assert Logins(Compared()).refusal(USERS, header) is None


@given(st.text(alphabet=st.characters(max_codepoint=255)) | st.binary().map(basic_bytes))
def test_any_header(header: str) -> None:
    """No header but that of the right password is accepted, and none raises an error."""
    assert Logins(Compared()).refusal(USERS, header) is UNAUTHORIZED or header.endswith("YWxpY2U6d29uZGVy")


def _in_thread(ask: Callable[[], Response | None], answers: list[Response | None]) -> threading.Thread:
    thread = threading.Thread(target=lambda: answers.append(ask()))
    thread.start()
    return thread


def test_a_crowd_of_guesses() -> None:
    """One comparison at a time; a few clients wait, not all of one address; cached logins do not wait."""
    begun, go_on = threading.Semaphore(0), threading.Event()
    together, most = 0, 0

    def slow(password: bytes, _: bytes) -> bool:
        nonlocal together, most
        together += 1
        most = max(most, together)
        begun.release()
        assert password == b"wonder" or go_on.wait(10)
        together -= 1
        return password == b"wonder"

    logins = Logins(slow)
    assert logins.refusal(USERS, basic("alice", "wonder")) is None
    begun.acquire()
    answers: list[Response | None] = []
    threads = [_in_thread(lambda: logins.refusal(USERS, basic("alice", "first"), "a"), answers)]
    assert begun.acquire(timeout=10)
    threads += [
        _in_thread(lambda guess=str(guess): logins.refusal(USERS, basic("alice", guess), "a"), answers)  # type: ignore[misc]
        for guess in range(QUEUE_PER_ADDRESS)
    ]
    while len(logins._queue) < QUEUE_PER_ADDRESS:
        threading.Event().wait(0.01)
    assert logins.refusal(USERS, basic("alice", "one more"), "a") is MANY_LOGINS
    threads += [
        _in_thread(lambda guess=f"b{guess}": logins.refusal(USERS, basic("alice", guess), guess), answers)  # type: ignore[misc]
        for guess in range(QUEUE_SIZE - QUEUE_PER_ADDRESS)
    ]
    while len(logins._queue) < QUEUE_SIZE:
        threading.Event().wait(0.01)

    assert logins.refusal(USERS, basic("alice", "wonder")) is None
    go_on.set()
    for thread in threads:
        thread.join()
    assert answers == [UNAUTHORIZED] * (1 + QUEUE_SIZE)
    assert most == 1
    assert logins.refusal(USERS, basic("alice", "one more")) is UNAUTHORIZED


def test_addresses_with_wrong_passwords_come_last() -> None:
    """A client of another address is compared next, and displaces a guess if the queue is full."""
    turns: queue.Queue[bytes] = queue.Queue()
    go_on = threading.Semaphore(0)

    def slow(password: bytes, _: bytes) -> bool:
        turns.put(password)
        assert go_on.acquire(timeout=10)
        return password == b"wonder"

    logins = Logins(slow)
    go_on.release(2)
    for address in "ab":
        assert logins.refusal(USERS, basic("alice", f"first of {address}"), address) is UNAUTHORIZED
    answers: list[Response | None] = []
    threads = [_in_thread(lambda: logins.refusal(USERS, basic("alice", "blocks"), "a"), answers)]
    while turns.get(timeout=10) != b"blocks":
        pass
    for number in range(QUEUE_PER_ADDRESS):
        for address in "ab":
            guess = basic("alice", f"{address}{number}")
            threads.append(_in_thread(lambda a=address, g=guess: logins.refusal(USERS, g, a), answers))  # type: ignore[misc]
    while len(logins._queue) < QUEUE_SIZE:
        threading.Event().wait(0.01)
    threads.append(_in_thread(lambda: logins.refusal(USERS, basic("alice", "wonder"), "c"), answers))
    while not answers:
        threading.Event().wait(0.01)

    assert answers == [MANY_LOGINS]
    go_on.release()
    assert turns.get(timeout=10) == b"wonder"
    go_on.release(QUEUE_SIZE)
    for thread in threads:
        thread.join()
    assert answers.count(None) == 1
    assert answers.count(UNAUTHORIZED) == QUEUE_SIZE


def test_the_addresses_of_an_ipv6_network_count_as_one() -> None:
    """A host that guesses from many addresses of its network comes last with each of them."""
    logins = Logins(Compared())
    auth = Access(lambda _: PAGE, lambda: WebConfig(users=USERS), logins)
    for number in range(5):
        headers = {"authorization": basic("alice", str(number))}
        auth(Request("GET", "/", {}, headers, "HTTP/1.1", keep_alive=True, address=f"2001:db8::{number}"))

    assert logins._failures == {"2001:db8::": 5}


def test_the_counted_addresses_are_bounded() -> None:
    """However many addresses guess."""
    logins = Logins(Compared())
    for number in range(FAILURES_SIZE + 10):
        logins.refusal(USERS, basic("alice", str(number)), str(number))

    assert len(logins._failures) == FAILURES_SIZE


def test_the_same_password_at_the_same_time() -> None:
    """Two clients with the same password cost one comparison."""
    compared = Compared()
    begun, go_on = threading.Event(), threading.Event()

    def slow(password: bytes, hashed: bytes) -> bool:
        begun.set()
        assert go_on.wait(10)
        return compared(password, hashed)

    logins = Logins(slow)
    answers: list[Response | None] = []
    threads = [_in_thread(lambda: logins.refusal(USERS, basic("alice", "wonder")), answers) for _ in range(2)]
    while not begun.is_set() or len(logins._queue) < 1:
        threading.Event().wait(0.01)
    go_on.set()
    for thread in threads:
        thread.join()

    assert answers == [None, None]
    assert len(compared.calls) == 1


def request(**headers: str) -> Request:
    """A request for a page."""
    return Request("GET", "/metrics", {}, headers, "HTTP/1.1", keep_alive=True)


def test_an_empty_configuration_changes_nothing() -> None:
    """The response is the page's own."""
    assert Access(lambda _: PAGE, WebConfig, Logins(Compared()))(request()) is PAGE


def test_pages_are_rendered_only_after_a_login() -> None:
    """Without a valid password the page is not even rendered."""
    requests = []

    def pages(request: Request) -> Response:
        requests.append(request)
        return PAGE

    guarded = Access(pages, lambda: WebConfig(users=USERS), Logins(Compared()))

    assert [guarded(request()).status, guarded(request(authorization=basic("alice", "no"))).status] == [401, 401]
    assert requests == []
    assert guarded(request(authorization=basic("alice", "wonder"))) is PAGE


def test_a_stream_ends_when_its_users_change() -> None:
    """A client that has watched since yesterday does not go on with a password of yesterday, and its slot is freed."""
    streams = Streams(lambda: None, 1)
    configs = [WebConfig(users=USERS)]

    def pages(_: Request) -> Response:
        stream = streams.join(gzip=False)
        assert stream is not None
        return Response(200, [], stream, live=True)

    answer = Access(pages, lambda: configs[0], Logins(Compared()))(request(authorization=basic("alice", "wonder")))
    assert isinstance(answer.body, Revocable)
    parts = iter(answer.body)
    assert next(parts)
    streams.wake()
    configs[0] = WebConfig(users=USERS, http2=True)
    assert next(parts)
    streams.wake()
    configs[0] = WebConfig(users={name: hashed for name, hashed in USERS.items() if name != "alice"})
    assert list(parts) == []
    answer.body.close()
    assert streams.open == 0
