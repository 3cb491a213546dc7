"""Shields inside transformers, timm and Lightning, with networks of random weights."""

import pytest
import torch
from torch import nn

import vqshield as vq


@pytest.mark.parametrize("name", ["ViTImageProcessor", "ViTImageProcessorPil"])
def test_a_processor_of_transformers_shields_between_rescaling_and_normalising(natural, name: str) -> None:
    pytest.importorskip("transformers.image_processing_backends", reason="transformers 5 is not installed")
    import transformers
    from PIL import Image

    from vqshield.integrations.transformers import shielded_processor

    kind = getattr(transformers, name, None)
    if kind is None or "requires" in (kind.__doc__ or "").lower():
        pytest.skip(f"{name} is not in this transformers")
    try:
        bare = kind(size={"height": 32, "width": 32}, image_mean=[0.4] * 3, image_std=[0.2] * 3)
    except ImportError as error:
        pytest.skip(str(error).strip().splitlines()[0])
    pictures = [Image.fromarray((each * 255).round().byte().permute(1, 2, 0).numpy()) for each in natural[:2]]
    shielded = shielded_processor(bare, "prd:codes=5", seed=1)
    found = shielded(pictures, return_tensors="pt")["pixel_values"] * 0.2 + 0.4
    plain = bare(pictures, return_tensors="pt")["pixel_values"] * 0.2 + 0.4
    expected = vq.PRD(codes=5, seed=1)(plain.clamp(0, 1))
    assert ((found - expected).abs() < 1e-3).double().mean() > 0.95
    config = transformers.ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    model = transformers.ViTForImageClassification(config).eval()
    answer = transformers.pipeline("image-classification", model=model, image_processor=shielded)(pictures[0])
    assert {"label", "score"} <= set(answer[0])
    with pytest.raises(ValueError, match="do_rescale"):
        shielded_processor(kind(do_rescale=False))


def test_a_timm_model_has_its_normalisation_inside(natural) -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed, or torchvision does not fit this torch")
    from PIL import Image

    from vqshield.integrations.timm import defended_timm

    network = timm.create_model("resnet10t", pretrained=False, num_classes=5).eval()
    model, transform = defended_timm(network, "prd:codes=5", seed=1)
    picture = Image.fromarray((natural[0] * 255).byte().permute(1, 2, 0).numpy())
    pixels = transform(picture)[None]
    assert 0 <= float(pixels.min()) < float(pixels.max()) <= 1
    with torch.no_grad():
        logits = model(pixels)
        mean, std = (torch.tensor(network.pretrained_cfg[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
        expected = network((vq.PRD(codes=5, seed=1)(pixels) - mean) / std)
    assert torch.allclose(logits, expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_lightning_sees_shielded_batches_in_the_stages_asked_for(natural, tmp_path) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from vqshield.integrations.lightning import ShieldCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = nn.Linear(1, 1), []

        def test_step(self, batch, index):
            self.seen.append(batch[0])

        predict_step = test_step

    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(natural[:4], torch.zeros(4)), batch_size=2
    )
    module = Module()
    trainer = lightning.Trainer(
        callbacks=[ShieldCallback("prd:codes=5", seed=1, stages=("test",))], accelerator="cpu", logger=False,
        enable_progress_bar=False, enable_checkpointing=False, default_root_dir=tmp_path,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.test(module, data, verbose=False)
    assert torch.equal(torch.cat(module.seen), vq.PRD(codes=5, seed=1)(natural[:4]))
    module.seen.clear()
    trainer.predict(module, data)
    assert torch.equal(torch.cat(module.seen), natural[:4])
