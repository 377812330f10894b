"""Who may replace functions of MXNet, and when they are put back."""

from __future__ import annotations

import os
import threading

from graphopt.backend.turns import Kind, Turn, Turns

done: list[str] = []


def kind(name: str) -> Kind:
    return Kind(lambda: done.append(f"install {name}"), lambda: done.append(f"remove {name}"))


calls, samples = kind("calls"), kind("samples")


def enter(turns: Turns, kind: Kind) -> Turn | None:
    turn = Turn()
    return turn if turns.try_enter(kind, turn) else None


def leave(turns: Turns, turn: Turn) -> None:
    turn.is_over = True
    turns.leave()


def test_the_last_one_puts_functions_back() -> None:
    turns = Turns()
    done.clear()
    first, second = enter(turns, calls), enter(turns, calls)
    assert first
    assert second
    leave(turns, first)
    assert done == ["install calls", "install calls"]
    leave(turns, second)
    assert done[2:] == ["remove calls"]
    assert enter(turns, samples)


def test_who_is_refused_puts_nothing_back() -> None:
    turns = Turns()
    done.clear()
    assert enter(turns, samples)
    assert enter(turns, calls) is None
    leave(turns, Turn())
    assert done == ["install samples"]


def test_a_turn_that_is_over_hinders_nobody() -> None:
    turns = Turns()
    lost = enter(turns, calls)
    assert lost
    lost.is_over = True  # and an interrupt kept it from leaving
    done.clear()
    assert enter(turns, samples)
    assert done == ["remove calls", "install samples"]


def test_who_waits_is_next() -> None:
    turns, entered = Turns(), threading.Event()
    running = enter(turns, calls)
    assert running
    waits = Kind(entered.set, lambda: None)
    waiting = threading.Thread(target=lambda: turns.enter(waits, Turn()))
    waiting.start()
    while (another := enter(turns, calls)) is not None:
        leave(turns, another)
    assert not entered.is_set()
    leave(turns, running)
    waiting.join(60)
    assert entered.is_set()


def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    turns, entered, may_leave = Turns(), threading.Event(), threading.Event()

    def record() -> None:
        turn = enter(turns, calls)
        assert turn
        entered.set()
        may_leave.wait(60)
        leave(turns, turn)

    recording = threading.Thread(target=record)
    recording.start()
    entered.wait(60)
    done.clear()
    child = os.fork()
    if child == 0:
        turns.forget_threads()
        is_free = enter(turns, samples) is not None
        os._exit(0 if is_free and done == ["remove calls", "install samples"] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert enter(turns, samples) is None
    may_leave.set()
    recording.join(60)
    assert enter(turns, samples)


def test_a_forked_child_goes_on_with_the_turn_of_the_thread_that_forked() -> None:
    turns = Turns()
    turn = enter(turns, calls)
    assert turn
    turns.forget_threads()
    assert enter(turns, samples) is None
    leave(turns, turn)
    assert enter(turns, samples)
