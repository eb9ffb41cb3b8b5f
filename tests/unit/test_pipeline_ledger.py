"""The coordinator's books, without any training."""

from runners.elastic.ledger import Ledger
from runners.state import SEED_STATE, StateId, restorable, transfers


class Recorder:
    def __init__(self):
        self.events, self.time = [], 0.0

    def now(self):
        return self.time

    def record(self, event, **fields):
        self.events.append({"event": event, **fields})

    def of(self, event):
        return [e for e in self.events if e["event"] == event]


def note(step, stage, epoch=1, **fields):
    loss = {"loss": 5.0 - step} if stage == 1 else {}  # two stages: the last one knows the loss
    return {"step": step, "stage": stage, "epoch": epoch, "began": float(step), "ended": step + 0.9, **loss, **fields}


def ledger():
    node = Recorder()
    books = Ledger(node, samples=8)
    books.restart(SEED_STATE, 1, ("a", "b"))
    return node, books


def both(books, step, epoch=1):
    for stage in (1, 0):
        books.note(note(step, stage, epoch))


def test_a_step_is_complete_when_every_stage_is():
    node, books = ledger()
    books.note(note(0, 1))
    assert books.committed == 0
    books.note(note(0, 0, ended=2.0))
    assert books.committed == 1
    assert node.events == [
        {"event": "step", "step": 0, "loss": 5.0, "start": 0.0, "end": 2.0, "samples": 8, "attempt": 1, "devices": 2}
    ]


def test_stages_may_report_out_of_step():
    node, books = ledger()
    books.note(note(0, 1))
    books.note(note(1, 1))
    books.note(note(0, 0))
    assert books.committed == 1
    books.note(note(1, 0))
    assert [e["step"] for e in node.of("step")] == [0, 1]


def test_attempts_count_how_often_a_step_was_begun():
    node, books = ledger()
    for step in range(3):
        both(books, step)
    books.lost("wait", "b", at_s=3.5, detection_s=1.0)
    books.restart(StateId(1, 1), 2, ("a", "b"))  # steps 1 and 2 are undone, and 3 was under way
    for step in range(1, 5):
        both(books, step, epoch=2)
    assert [(e["step"], e["attempt"]) for e in node.of("step")] == [
        (0, 1), (1, 1), (2, 1), (1, 2), (2, 2), (3, 2), (4, 1)
    ]  # fmt: skip


def test_a_step_that_had_not_begun_is_no_attempt():
    node, books = ledger()
    both(books, 0)
    books.paused_for("c")
    books.restart(StateId(1, 1), 2, ("a", "c"))
    books.ready()
    both(books, 1, epoch=2)
    assert node.of("step")[-1]["attempt"] == 1
    assert node.of("recovery")[0]["kind"] == "join"


def test_recovery_ends_when_training_is_back_where_it_was():
    node, books = ledger()
    for step in range(3):
        both(books, step)
    books.lost("replan", "b", at_s=3.5, detection_s=1.0)
    books.restart(StateId(1, 1), 2, ("a", "c"))
    node.time = 6.0
    books.ready()
    both(books, 1, epoch=2)
    assert not node.of("recovery")
    node.time = 9.0
    both(books, 2, epoch=2)
    assert node.of("recovery") == [{
        "event": "recovery", "kind": "replan", "peer": "b", "detected": 1.0, "start": 3.5, "end": 9.0,
        "restored": 6.0, "step": 3, "lost_steps": 2,
    }]  # fmt: skip


def test_a_second_loss_on_the_way_back():
    node, books = ledger()
    for step in range(3):
        both(books, step)
    books.lost("wait", "b", 3.0, 1.0)
    books.restart(StateId(2, 1), 2, ("a", "b"))
    books.ready()
    books.lost("wait", "a", 4.0, 1.0)
    books.restart(SEED_STATE, 3, ("a", "b"))
    books.ready()
    for step in range(3):
        both(books, step, epoch=3)
    assert {(e["peer"], e["lost_steps"]) for e in node.of("recovery")} == {("b", 3), ("a", 2)}


def test_a_state_without_its_losses_is_not_used():
    _, books = ledger()
    both(books, 0)
    books.note(note(1, 0))
    assert books.usable(StateId(1, 1))
    assert not books.usable(StateId(2, 1))  # the last stage's report of step 1 did not come through
    books.note(note(1, 1))
    assert books.usable(StateId(2, 1))
    assert not books.usable(StateId(3, 1))
    assert books.usable(SEED_STATE)


def test_a_step_known_from_the_last_stage_alone_is_recorded_on_restart():
    node, books = ledger()
    both(books, 0)
    books.note(note(1, 1))
    books.restart(StateId(2, 1), 2, ("a", "b"))
    assert [(e["step"], e["loss"]) for e in node.of("step")] == [(0, 5.0), (1, 4.0)]
    assert books.committed == 2


def test_restorable_states_are_whole_and_never_mixed():
    old, new, other = StateId(4, 1), StateId(5, 2), StateId(5, 1)
    holders = [{old: {0, 1}, new: {0}}, {old: {2}, other: {1, 2}}]
    assert restorable(range(3), holders) == [old, SEED_STATE]
    assert restorable(range(3), [*holders, {new: {1, 2}}]) == [new, old, SEED_STATE]


def test_transfers_move_only_what_is_missing_and_share_the_giving():
    state = StateId(4, 1)
    holders = {"server": {state: {0}}, "a": {state: {0, 1, 2, 3}}, "b": {state: {2, 3}}, "c": {}}
    got = transfers({"a": [1], "c": [0, 2, 3]}, state, "server", holders)
    assert got["a"] == {1: "here"}
    assert got["c"][0] == "server"
    assert {got["c"][2], got["c"][3]} == {"a", "b"}
    assert transfers({"c": [0, 1]}, SEED_STATE, "server", {})["c"] == {0: "seed", 1: "seed"}
