"""Mistakes that a CPU forgives, put into the package one at a time: the fake accelerator's checks catch each."""

from dataclasses import replace

import fake_accelerator as fake
import pytest
import torch
from accelerated import Setting, check_update
from torch.nn import functional

from rlscale.agents.learning import batch, gradients, optimizer
from rlscale.agents.networks.layers import Dense

fake.register()

PIXELS = Setting("small_cnn", bfloat16=True)  # fake_learner.py shows that without a mistake nothing is caught


def caught(error, message, setting=PIXELS):
    with pytest.raises(error, match=message):
        check_update(setting, updates=1)


def test_a_tensor_left_on_the_cpu(monkeypatch):
    monkeypatch.setattr(gradients, "upload", lambda tensor, device: tensor)
    caught(fake.DeviceError, "tensors of two devices, fake and cpu")


def test_an_item_in_the_loop_over_blocks(monkeypatch):
    losses = gradients.ppo_losses

    def mistaken(**arguments):
        found = losses(**arguments)
        found.joint.sum().item()
        return found

    monkeypatch.setattr(gradients, "ppo_losses", mistaken)
    caught(AssertionError, "waits in the loop over blocks")


def test_a_mask_whose_true_elements_are_picked_in_the_loop(monkeypatch):
    """The size of what is picked depends on the numbers, so the host has to wait for them."""
    losses = gradients.ppo_losses

    def mistaken(**arguments):
        arguments["advantage"][arguments["advantage"] > 0]
        return losses(**arguments)

    monkeypatch.setattr(gradients, "ppo_losses", mistaken)
    caught(AssertionError, "waits in the loop over blocks")


def test_a_second_transfer(monkeypatch):
    once = batch.DeviceFrames

    def twice(*arguments):
        once(*arguments)
        return once(*arguments)

    monkeypatch.setattr(batch, "DeviceFrames", twice)
    caught(AssertionError, "bytes crossed")


def test_a_transfer_as_numbers_instead_of_bytes(monkeypatch):
    class Converted(batch.DeviceFrames):
        def __init__(self, fragments, *arguments):
            changed = [torch.from_numpy(f.frames).float().numpy() for f in fragments]
            super().__init__([replace(f, frames=x) for f, x in zip(fragments, changed, strict=True)], *arguments)

    monkeypatch.setattr(batch, "DeviceFrames", Converted)
    caught(AssertionError, "bytes crossed")


def test_a_wrong_type_under_autocast(monkeypatch):
    def mistaken(self, input):
        with torch.autocast(input.device.type, enabled=False):
            return functional.linear(input.float(), self.weight, self.bias)

    monkeypatch.setattr(Dense, "forward", mistaken)
    caught(AssertionError, "torch.float32")


def test_a_generator_of_the_cpu(monkeypatch):
    losses = gradients.ppo_losses

    def mistaken(**arguments):
        torch.rand(arguments["advantage"].shape, generator=torch.Generator(), device=arguments["advantage"].device)
        return losses(**arguments)

    monkeypatch.setattr(gradients, "ppo_losses", mistaken)
    caught(fake.DeviceError, "the generator is one of cpu")


def test_a_copy_from_memory_that_is_not_page_locked(monkeypatch):
    monkeypatch.setattr(gradients, "upload", lambda tensor, device: tensor.to(device, non_blocking=True))
    caught(AssertionError, "waits in the loop over blocks")


def test_figures_fetched_at_every_step(monkeypatch):
    """In an iteration of several steps that is one wait too many."""
    step = optimizer.BlockOptimizer.step

    def mistaken(self, found, learning_rate):
        found.figures.tolist()
        step(self, found, learning_rate)

    monkeypatch.setattr(optimizer.BlockOptimizer, "step", mistaken)
    caught(AssertionError, "waits in 2 optimizer steps", Setting("mlp", update={"mini_batch": 24, "shuffle": "environments"}))


def test_numbers_that_differ_in_the_last_bit(monkeypatch):
    losses = gradients.ppo_losses

    def mistaken(**arguments):
        if arguments["advantage"].device.type == "fake":
            arguments["advantage"] = arguments["advantage"] * (1 + 2**-23)
        return losses(**arguments)

    monkeypatch.setattr(gradients, "ppo_losses", mistaken)
    caught(AssertionError, "figures differ")
