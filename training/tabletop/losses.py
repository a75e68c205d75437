"""The training objective: flow matching on chunks, next words of answers, and two helpers that are thrown away.

The helpers read where things are: one from the patches of each picture (what stands here, and where exactly), one from
the prefix's last token (where on the table are the objects of the task). They teach the vision tower and the attention
in minutes what the action loss alone takes far longer to teach; the checkpoint doesn't hold them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from edgellm_ros.tabletop.objects import COLOUR_NAMES, SHAPE_NAMES
from training.tabletop.model import SmolVla
from training.tabletop.sizes import Sizes

DRAWS = 4  # noisy chunks for each prefix
WEIGHTS = {"flow": 1.0, "words": 0.25, "marks": 0.15, "goal": 0.3}


class Objective(nn.Module):
    """The policy with its helpers; ``forward`` gives the summed loss and its parts."""

    def __init__(self, sizes: Sizes, image_id: int, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.policy = SmolVla(sizes)
        self.image_id = image_id
        self.mark_head = nn.Linear(sizes.vision_width, 1 + len(COLOUR_NAMES) + len(SHAPE_NAMES) + 2 + 3)
        self.goal_head = nn.Sequential(nn.Linear(sizes.width, 256), nn.GELU(), nn.Linear(256, 4))
        self.register_buffer("mean", mean, persistent=False)  # [2,4]: state, action
        self.register_buffer("deviation", deviation, persistent=False)

    def forward(self, motion: dict[str, Tensor], question: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        pixels = augment(torch.cat([motion["images"], question["images"]]))
        patches = self.policy.patches(pixels)
        images = self.policy.image_tokens(patches)
        count = len(motion["images"])
        parts = {
            "marks": self.mark_loss(
                patches,
                torch.cat([motion["marks"], question["marks"]]),
                torch.cat([motion["looks"], question["looks"]]).long(),
            )
        }
        parts["flow"], parts["goal"] = self.act_loss(images[:count], motion)
        parts["words"] = self.word_loss(images[count:], question)
        total = sum(WEIGHTS[name] * value for name, value in parts.items())
        return total, {name: value.detach() for name, value in parts.items()}

    def act_loss(self, images: Tensor, motion: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Flow-matching loss and the helper's loss on the places of the task's objects."""
        state = (motion["state"] - self.mean[0]) / self.deviation[0]
        actions = (motion["chunk"] - self.mean[1]) / self.deviation[1]
        task = motion["task"].long()
        task_mask = torch.arange(task.shape[1], device=task.device)[None] < motion["task_length"][:, None]
        out, cache, seen = self.policy.prefix(images, task, task_mask, state)
        batch = len(actions)
        noise = torch.randn(batch, DRAWS, *actions.shape[1:], device=actions.device)
        # Beta(1.5, 1) by inverting its distribution function, stretched as in lerobot.
        time = torch.rand(batch, DRAWS, device=actions.device) ** (1.0 / 1.5) * 0.999 + 0.001
        mix = time[..., None, None]
        target = noise - actions[:, None]
        velocity = self.policy.velocity(cache, seen, mix * noise + (1.0 - mix) * actions[:, None], time)
        flow = functional.mse_loss(velocity.float(), target)
        goal = motion["goal"]
        known = ~goal.isnan()
        error = functional.smooth_l1_loss(
            self.goal_head(out[:, -1]).float(), goal.nan_to_num(), reduction="none", beta=0.1
        )
        return flow, (error * known).sum() / known.sum()

    def word_loss(self, images: Tensor, question: dict[str, Tensor]) -> Tensor:
        """Mean cross-entropy over the answers' tokens."""
        ids = question["ids"].long()
        logits = self.policy.logits(images, ids, self.image_id)[:, :-1].float()
        place = torch.arange(1, ids.shape[1], device=ids.device)[None]
        wanted = (place >= question["span"][:, :1]) & (place < question["span"][:, 1:])
        loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view_as(wanted)
        return (loss * wanted).sum() / wanted.sum()

    def mark_loss(self, patches: Tensor, marks: Tensor, looks: Tensor) -> Tensor:
        """What each patch holds: an object's centre, its colour, shape and offset, and the hand's offset."""
        sizes = self.policy.sizes
        side = sizes.image // sizes.patch
        out = self.mark_head(patches).float()  # [B,C,n,.]
        cell = (marks / sizes.patch).floor()
        inside = ((cell >= 0) & (cell < side)).all(-1)
        index = (cell[..., 1] * side + cell[..., 0]).clamp(0, side * side - 1).long()  # [B,C,N+1]
        offset = marks / sizes.patch - cell - 0.5
        known = inside[:, :, :-1] & (looks[:, None, :, 1] >= 0)
        occupied = torch.zeros(out.shape[:3], device=out.device)
        occupied.scatter_reduce_(2, index[:, :, :-1], known.float(), "amax")
        loss = functional.binary_cross_entropy_with_logits(out[..., 0], occupied)
        read = out.gather(2, index[..., None].expand(-1, -1, -1, out.shape[-1]))  # [B,C,N+1,.]
        item, hand = read[:, :, :-1], read[:, :, -1]
        colours, shapes = len(COLOUR_NAMES), len(SHAPE_NAMES)
        # What has no name is nothing to learn: its class is outside the list.
        colour = torch.where(looks[..., 0] < colours, looks[..., 0], -1)[:, None].expand(known.shape)
        shape = torch.where(looks[..., 1] < shapes, looks[..., 1], -1)[:, None].expand(known.shape)
        each = sum(
            functional.cross_entropy(scores.flatten(0, 2), wanted.flatten(), reduction="none", ignore_index=-1)
            for scores, wanted in (
                (item[..., 1 : 1 + colours], colour),
                (item[..., 1 + colours : 1 + colours + shapes], shape),
            )
        )
        start = 1 + colours + shapes
        place = functional.smooth_l1_loss(
            item[..., start : start + 2], offset[:, :, :-1], reduction="none", beta=0.1
        ).sum(-1)
        weight = known.float()
        loss = loss + ((each.view_as(weight) + 4.0 * place) * weight).sum() / weight.sum().clamp_min(1.0)
        seen = inside[:, :, -1].float()
        reach = functional.smooth_l1_loss(
            hand[..., start + 2 : start + 4], offset[:, :, -1], reduction="none", beta=0.1
        ).sum(-1)
        return loss + 2.0 * (reach * seen).sum() / seen.sum().clamp_min(1.0)


def augment(images: Tensor) -> Tensor:
    """uint8 [B,C,128,128,3] to [B,C,3,128,128] in about -1..1, with other light and a little noise."""
    pixels = images.permute(0, 1, 4, 2, 3).float() / 127.5 - 1.0
    gain = 1.0 + 0.06 * torch.randn(len(images), 1, 3, 1, 1, device=images.device)
    lift = 0.06 * torch.randn(len(images), images.shape[1], 1, 1, 1, device=images.device)
    grain = 0.015 * torch.randn_like(pixels)
    return (pixels * gain + lift + grain).clamp(-1.0, 1.0)
