"""Who may replace functions of MXNet, and when they are put back."""

from __future__ import annotations

import threading

from graphopt.backend.turns import Kind, Turn, Turns

done: list[str] = []


def enter(turns: Turns, kind: Kind) -> Turn | None:
    turn = Turn()
    return turn if turns.try_enter(kind, turn, lambda: done.append(f"install {kind}")) else None


def leave(turns: Turns, kind: Kind, turn: Turn) -> None:
    turn.is_over = True
    turns.leave(lambda: done.append(f"remove {kind}"))


def test_the_last_one_puts_functions_back() -> None:
    turns = Turns()
    done.clear()
    first, second = enter(turns, "calls"), enter(turns, "calls")
    assert first
    assert second
    leave(turns, "calls", first)
    assert done == ["install calls", "install calls"]
    leave(turns, "calls", second)
    assert done[2:] == ["remove calls"]
    assert enter(turns, "samples")


def test_who_is_refused_puts_nothing_back() -> None:
    turns = Turns()
    done.clear()
    assert enter(turns, "samples")
    assert enter(turns, "calls") is None
    leave(turns, "calls", Turn())
    assert done == ["install samples"]


def test_a_turn_that_is_over_hinders_nobody() -> None:
    turns = Turns()
    lost = enter(turns, "calls")
    assert lost
    lost.is_over = True  # and an interrupt kept it from leaving
    assert enter(turns, "samples")


def test_who_waits_is_next() -> None:
    turns, entered = Turns(), threading.Event()
    running = enter(turns, "calls")
    assert running
    waiting = threading.Thread(target=lambda: turns.enter("samples", Turn(), entered.set))
    waiting.start()
    while (another := enter(turns, "calls")) is not None:
        leave(turns, "calls", another)
    assert not entered.is_set()
    leave(turns, "calls", running)
    waiting.join(60)
    assert entered.is_set()
