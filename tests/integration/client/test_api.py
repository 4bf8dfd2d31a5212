"""The client as a library: reconnects, idempotency, deadlines."""

from __future__ import annotations

import threading
import time

import pytest

from ytk_client.api import Client, LogChunk, Patience
from ytk_client.config import load_settings
from ytk_core.errors import BoardError, RemoteError, UserError
from ytk_core.jobs import JobKind, JobSpec, JobState
from ytk_core.workers import JobView

QUICK = Patience(first_wait_s=0.02, longest_wait_s=0.1, give_up_s=240.0)


@pytest.fixture
def said():
    return []


@pytest.fixture
def connect(fake, said, tmp_path):
    """Make clients of the fake."""
    clients = []

    def make(patience: Patience = QUICK, key: str = "") -> Client:
        environment = {
            "YTK_HOME": str(tmp_path),
            "YTK_CONFIG": str(tmp_path / "none"),
            "YTK_CONTROLLER": fake.address,
            "YTK_API_KEY": key or fake.key,
        }
        clients.append(Client(load_settings(environment=environment), notify=said.append, patience=patience))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


SPEC = JobSpec(kind=JobKind.WORKER_HEALTH)


def test_connect_tells_who_we_are(connect):
    info = connect().connect()
    assert (info.principal, info.scope) == ("test", "client")


def test_wrong_key(connect):
    with pytest.raises(UserError, match="environment YTK_API_KEY") as caught:
        connect(key="wrong").connect()
    assert caught.value.code == "unauthenticated"


def test_watch_ends_with_the_terminal_state(connect, fake):
    fake.answer(JobKind.WORKER_HEALTH, summary={"ok": True})
    client = connect()
    job = client.submit(SPEC, {}).job
    views = list(client.watch(job.id))
    assert [view.state for view in views] == [JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED]
    assert views[-1].result.summary == {"ok": True}


def test_events_carry_the_whole_log_in_order(connect, fake):
    log = bytes(range(256)) * 3
    fake.answer(JobKind.WORKER_HEALTH, log=log)
    client = connect()
    events = list(client.events(client.submit(SPEC, {}).job.id))
    assert b"".join(event.data for event in events if isinstance(event, LogChunk)) == log
    assert isinstance([event for event in events if isinstance(event, JobView)][-1].result, object)


def test_lost_answer_of_a_submit_makes_one_job(connect, fake, said):
    fake.answer(JobKind.WORKER_HEALTH)
    fake.unavailable("SubmitJob", 2)
    client = connect()
    assert client.submit(SPEC, {}).job.id == "job-1"
    assert fake.calls.count("SubmitJob") == 3
    assert len(client.jobs()) == 1
    assert "lost the controller" in said[0]
    assert "is back" in said[-1]


def test_restart_of_the_controller_while_watching(connect, fake, said):
    fake.answer(JobKind.WORKER_HEALTH, log=b"before and after")
    fake.hold()
    client = connect()
    job = client.submit(SPEC, {}).job
    events = client.events(job.id)
    seen = []
    for event in events:
        seen.append(event)
        if isinstance(event, JobView) and event.state is JobState.RUNNING:
            break
    fake.stop()
    threading.Timer(0.3, lambda: (fake.release(), fake.start())).start()
    seen += list(events)
    states = [event.state for event in seen if isinstance(event, JobView)]
    assert states[-1] is JobState.SUCCEEDED
    assert states == sorted(set(states), key=states.index)  # nothing twice
    assert b"".join(event.data for event in seen if isinstance(event, LogChunk)) == b"before and after"
    assert ["lost" if "lost the controller" in line else "back" for line in said] == ["lost", "back"]


def test_late_news_of_an_old_connection_is_not_told(connect, said):
    """Two streams: what the slower one says of a connection that is gone does not count any more."""
    client = connect()
    attempts = []

    def cut_before_the_other_stream_was_back():
        attempts.append(len(attempts))
        if len(attempts) == 1:
            client._note_lost(time.monotonic())
            client._note_alive()
            raise BoardError("the old connection is gone", code="unavailable", hint="")
        return "done"

    assert client._retrying(cut_before_the_other_stream_was_back) == "done"
    assert ["lost" if "lost" in line else "back" for line in said] == ["lost", "back"]


def test_a_stream_that_was_cut_is_no_sign_of_life(connect, said):
    client = connect()
    client._note_lost(time.monotonic())
    client._retrying(lambda: False, stream=True)
    assert len(said) == 1
    client._retrying(lambda: "an answer")
    assert "is back" in said[1]


def test_patience_ends(connect, fake):
    fake.answer(JobKind.WORKER_HEALTH)
    client = connect(Patience(first_wait_s=0.01, longest_wait_s=0.05, give_up_s=0.3))
    client.connect()
    fake.stop()
    with pytest.raises(BoardError) as caught:
        client.jobs()
    assert caught.value.code == "unavailable"


def test_connect_does_not_wait_for_a_controller_that_is_not_there(connect, fake):
    client = connect()
    fake.stop()
    with pytest.raises(BoardError) as caught:
        client.connect()
    assert caught.value.code == "no_controller"


def test_errors_of_the_controller_keep_code_and_hint(connect):
    with pytest.raises(RemoteError) as caught:
        connect().job("job-9")
    assert caught.value.code == "not_found"
    assert caught.value.hint


def test_following_can_be_abandoned(connect, fake):
    fake.answer(JobKind.WORKER_HEALTH)
    fake.hold()
    client = connect()
    events = client.events(client.submit(SPEC, {}).job.id)
    next(events)
    events.close()
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("ytk-")]
    for thread in threading.enumerate():
        if thread.name in names:
            thread.join(240.0)
            assert not thread.is_alive()
