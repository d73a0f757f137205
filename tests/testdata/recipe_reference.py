#!/usr/bin/python3
"""Losses and learning rates of Python's torch, for tests/recipe_python_test.cc to compare with.

Prints a line for each case: its name and then numbers. Exits with 77 where python3-torch is missing.
"""
import sys

SKIP = 77

try:
    import torch
    from torch.optim import lr_scheduler as schedules
except ImportError as error:
    print(f"{sys.executable}: {error}", file=sys.stderr)
    sys.exit(SKIP)

STEPS = 24


def show(name, values):
    print(name, *(repr(float(value)) for value in values))


def rates(name, base, make):
    """The rate of each step under make(optimizer)."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=base)
    schedule = make(optimizer)
    values = []
    for _ in range(STEPS):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    show(name, values)


def after_warm_up(optimizer, steps, start, main):
    rise = schedules.LinearLR(optimizer, start_factor=start, total_iters=steps)
    return schedules.SequentialLR(optimizer, [rise, main], milestones=[steps])


rates("step", 0.4, lambda o: schedules.MultiStepLR(o, milestones=[3, 7, 20], gamma=0.3))
rates("cosine", 0.4, lambda o: schedules.CosineAnnealingLR(o, T_max=STEPS, eta_min=0.01))
rates("poly", 0.4, lambda o: schedules.PolynomialLR(o, total_iters=STEPS, power=0.9))
rates("warm_constant", 0.4, lambda o: schedules.LinearLR(o, start_factor=0.25, total_iters=5))
rates("warm_default", 0.4, lambda o: schedules.LinearLR(o, start_factor=1 / 5, total_iters=4))
rates("warm_cosine", 0.4, lambda o: after_warm_up(
    o, 4, 0.1, schedules.CosineAnnealingLR(o, T_max=STEPS - 4, eta_min=0.01)))
rates("warm_poly", 0.4, lambda o: after_warm_up(
    o, 4, 0.1, schedules.PolynomialLR(o, total_iters=STEPS - 4, power=2)))
rates("warm_step", 0.4, lambda o: schedules.ChainedScheduler([
    schedules.LinearLR(o, start_factor=0.25, total_iters=5),
    schedules.MultiStepLR(o, milestones=[3, 7], gamma=0.3)]))

LOGITS = torch.tensor([[((3 * i + 5 * j) % 7) / 2 - 1 for j in range(5)] for i in range(6)], requires_grad=True)
LABELS = torch.tensor([0, 4, 2, 2, 1, 3])
for smoothing in (0, 0.1, 0.75, 1):
    LOGITS.grad = None
    loss = torch.nn.CrossEntropyLoss(label_smoothing=smoothing)(LOGITS, LABELS)
    loss.backward()
    show(f"loss_{smoothing}", [loss] + LOGITS.grad.flatten().tolist())
