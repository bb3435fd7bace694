"""Reviews of tokens: what the API server says counts for a minute, and an error is never an answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from gpuledger.errors import ConfigError, ReviewError
from gpuledger.model.problem import Problem
from gpuledger.net.kubeapi import ApiAccess
from gpuledger.web import reviews as module
from gpuledger.web.reviews import MOST_RESULTS, REFUSED_S, VALID_S, Reviews, TokenUser
from tests.waiting import wait_until
from tests.web.review_server import ReviewServer


@pytest.fixture
def server() -> Iterator[ReviewServer]:
    """An API server with two users."""
    server = ReviewServer({"a" * 20: "alice", "b" * 20: "bob"}, {"alice": {"ml"}, "bob": {"web", "ml"}})
    yield server
    server.close()


class Clock:
    """Time that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def user_of(reviews: Reviews, token: str) -> TokenUser:
    """The user of a valid token."""
    user = reviews.user(token, "client")
    assert user is not None
    return user


def test_who_may_read_what(server: ReviewServer) -> None:
    """The review of rights has the whole user of the token's review; each review is made once a minute."""
    clock = Clock()
    reviews = Reviews(server.access, monotonic=clock)
    for _ in range(3):
        user = user_of(reviews, "a" * 20)
        assert user.name == "alice"
        assert reviews.readable(user, {"ml", "web"}, "client") == {"ml"}
    assert [kind for kind, _ in server.reviews] == ["tokenreviews"] + ["subjectaccessreviews"] * 2
    assert server.reviews[1][1] == {
        "user": "alice", "uid": "alice-uid", "groups": ["g"], "extra": {"k": ["v"]},
        "resourceAttributes": {"namespace": "ml", "verb": "get", "resource": "pods"},
    }  # fmt: skip

    clock.now = VALID_S
    server.readable["alice"] = set()
    assert reviews.readable(user_of(reviews, "a" * 20), {"ml"}, "client") == set()
    del server.users["a" * 20]
    clock.now += VALID_S
    assert reviews.user("a" * 20, "client") is None


def test_refusals_count_for_ten_seconds(server: ReviewServer) -> None:
    """A token that is not valid yet is reviewed again soon, and guesses do not reach the API server each time."""
    clock = Clock()
    reviews = Reviews(server.access, monotonic=clock)
    for _ in range(3):
        assert reviews.user("c" * 20, "client") is None
    assert len(server.reviews) == 1
    server.users["c" * 20] = "carol"
    clock.now = REFUSED_S

    assert user_of(reviews, "c" * 20).name == "carol"


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "ä" * 20, "a\x00", "a" * 20 + "\r\nX: y"])
def test_malformed_tokens_are_not_reviewed(server: ReviewServer, token: str) -> None:
    """They are not valid."""
    assert Reviews(server.access).user(token, "client") is None
    assert server.reviews == []


def test_audiences(server: ReviewServer) -> None:
    """A token for another audience is not valid here."""
    reviews = Reviews(server.access, ["gpuledger"])
    assert user_of(reviews, "a" * 20).name == "alice"
    assert server.reviews[0][1]["audiences"] == ["gpuledger"]
    server.answer = 201, b'{"status": {"authenticated": true, "user": {"username": "bob"}, "audiences": ["other"]}}'

    assert reviews.user("b" * 20, "client") is None


FAILURES = {
    "refused": ((403, b"{}"), "auth", "system:auth-delegator"),
    "error": ((500, b"secret-text"), "http", "API server"),
    "no review": ((201, b'{"kind": "Status"}'), "format", "API server"),
    "no JSON": ((201, b"secret-text"), "format", "API server"),
    "nested": ((201, b"[" * 5000), "format", "API server"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures_close_the_view(server: ReviewServer, name: str) -> None:
    """The client gets no reason, the administrator gets one with a fix; afterwards the problem is gone."""
    problems: list[Problem | None] = []
    reviews = Reviews(server.access, report=problems.append)
    server.answer, kind, fix = FAILURES[name]
    with pytest.raises(ReviewError, match=r"^the API server did not review the request; try again later$"):
        reviews.user("a" * 20, "client")
    assert problems[-1] is not None
    assert problems[-1].kind == kind
    assert fix in problems[-1].fix
    assert "secret" not in str(problems[-1])

    server.answer = None
    assert user_of(reviews, "a" * 20).name == "alice"
    assert problems[-1] is None


@pytest.mark.parametrize("status", [b'{"status": {"allowed": true, "denied": true}}', b'{"status": {"allowed": "yes"}}',
                                    b'{"status": []}', b'{"status": null}'])  # fmt: skip
def test_only_a_clear_yes_is_one(server: ReviewServer, status: bytes) -> None:
    """Anything else is no."""
    reviews = Reviews(server.access)
    user = user_of(reviews, "a" * 20)
    server.answer = 201, status

    assert reviews.readable(user, {"ml"}, "client") == set()


def test_a_server_that_hangs_or_is_gone(server: ReviewServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is let in meanwhile."""
    monkeypatch.setattr(module, "TIMEOUT_S", 0.2)
    problems: list[Problem | None] = []
    reviews = Reviews(server.access, report=problems.append)
    server.go_on.clear()
    with pytest.raises(ReviewError):
        reviews.user("a" * 20, "client")
    assert problems[-1] is not None
    assert problems[-1].kind == "timeout"
    server.close()
    with pytest.raises(ReviewError):
        reviews.user("a" * 20, "client")

    def outside() -> ApiAccess:
        raise ConfigError("this is not a pod", "give a kubeconfig file")

    with pytest.raises(ReviewError):
        Reviews(outside, report=problems.append).user("a" * 20, "client")
    assert problems[-1] == Problem("this is not a pod", "give a kubeconfig file", "", "warning")


def test_one_client_cannot_keep_others_from_reviews(server: ReviewServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One review at a time for each client, however many tokens it tries."""
    monkeypatch.setattr(module, "TIMEOUT_S", 2.0)
    reviews = Reviews(server.access)
    server.go_on.clear()

    def ask(token: str, client: str) -> threading.Thread:
        def review() -> None:
            with suppress(ReviewError):
                reviews.user(token, client)

        thread = threading.Thread(target=review, daemon=True)
        thread.start()
        return thread

    for number in range(8):
        ask(f"guess-{number}", "mallory")
    wait_until(lambda: len(server.reviews) == 1)
    honest = ask("a" * 20, "alice")
    wait_until(lambda: len(server.reviews) == 2)
    assert server.reviews[1][1]["token"] == "a" * 20
    server.go_on.set()
    honest.join(10)

    assert user_of(reviews, "a" * 20).name == "alice"


def test_results_are_bounded(server: ReviewServer) -> None:
    """However many tokens are tried."""
    reviews = Reviews(server.access)
    for number in range(MOST_RESULTS + 10):
        reviews._cached(number, lambda: None)

    assert len(reviews._results) == MOST_RESULTS
