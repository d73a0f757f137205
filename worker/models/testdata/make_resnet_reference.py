#!/usr/bin/python3
"""One training step of torchvision's models, and of a GPT, for the C++ tests to compare with.

Weights, images and labels come from a formula that C++ computes too (models/formula_step.h), so
nothing large is stored.

  make_resnet_reference.py --out=resnet_reference.txt
      writes the stored reference: loss, logits, and for every gradient, updated parameter and
      buffer its norm and its dot products with two vectors of random signs. The latter estimate
      the norm of a difference without the tensor: the mean square of the differences of the dot
      products is, on average, the square of the norm of the difference. Computed in float64: in
      float32 another CPU's rounding moves a few activations across ReLU's kink, which alone
      changes some gradients of ResNet-50 by 2 % in norm (measured, AVX2 against SSE4.1).
  make_resnet_reference.py --raw=FILE --model=resnet18 --stem=imagenet --batch=4 --size=32 --threads=2
      writes all of it in full and in float32, for a comparison bit by bit.
  make_resnet_reference.py --raw=FILE --model=resnet18 --init_seed=7
      writes the initial weights that torchvision draws after torch.manual_seed(7); with --most=N
      only the first N values of each.
  make_resnet_reference.py --shapes=FILE
      writes the names and sizes of all tensors of all models that torchvision has too.

Needs python3-torch and python3-torchvision; exits with 77 where they, or the release of torch that
--torch=MAJOR.MINOR asks for, are missing.
"""
import argparse
import sys

SKIP = 77
PROBES = 2
LEARNING_RATE, WEIGHT_DECAY = 0.1, 1e-4
SHAPES_OF = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d",
             "resnext101_64x4d", "wide_resnet50_2", "wide_resnet101_2", "vgg16", "vgg16_bn", "vit_s_16"]
CASES = [("resnet18", "imagenet", 4, 64), ("resnet18", "cifar", 4, 32), ("resnet50", "imagenet", 4, 64)]

try:
    import numpy as np
    import torch
    import torchvision
except ImportError as error:
    print(f"{sys.executable}: {error}", file=sys.stderr)
    sys.exit(SKIP)


def random_bits(name, count):
    """64 random bits per element: a pure function of the name and the element's index."""
    seed = 14695981039346656037  # FNV-1a of the name...
    for byte in name.encode():
        seed = (seed ^ byte) * 1099511628211 % 2**64
    with np.errstate(over="ignore"):  # ... then SplitMix64's finaliser of seed + index * golden ratio.
        x = np.uint64(seed) + np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def uniform(name, count):
    """Doubles in [-1, 1) that are exact in 24 bits."""
    return (random_bits(name, count) >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0


def formula(name, shape):
    """The weights: about the usual initial scale, and no two alike."""
    values = uniform(name, int(np.prod(shape)))
    if len(shape) == 4:
        values = values * np.sqrt(6.0 / (shape[0] * shape[2] * shape[3]))
    elif len(shape) == 2:
        values = values / np.sqrt(float(shape[1]))
    elif name.endswith("weight"):
        values = 1.0 + 0.2 * values
    else:
        values = 0.1 * values
    return torch.from_numpy(values.astype(np.float32)).reshape(shape)


def make_vit(size):
    """torchvision's class in the small size, which it has no function for."""
    return torchvision.models.VisionTransformer(image_size=size, patch_size=16, num_layers=12, num_heads=6,
                                                hidden_dim=384, mlp_dim=1536, num_classes=10)


class GptLayer(torch.nn.Module):
    """By torch's own attention, so that ours is compared with something that it was not made from."""

    def __init__(self, width, heads):
        super().__init__()
        self.ln_1 = torch.nn.LayerNorm(width)
        self.self_attention = torch.nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = torch.nn.LayerNorm(width)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(approximate="tanh"),
                                       torch.nn.Identity(), torch.nn.Linear(4 * width, width))

    def forward(self, x):
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=x.dtype).triu(1)
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class Gpt(torch.nn.Module):
    def __init__(self, width=32, layers=2, heads=4, context=8, vocabulary=10):
        super().__init__()
        self.tokens = torch.nn.Embedding(vocabulary, width)
        self.positions = torch.nn.Embedding(context, width)
        self.layers = torch.nn.Sequential(*[GptLayer(width, heads) for _ in range(layers)])
        self.ln = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.ln(self.layers(x)))


def make_model(name, stem, size=32):
    if name == "vit_s_16":
        return make_vit(size)
    if name == "gpt":
        return Gpt()
    model = getattr(torchvision.models, name)(num_classes=10)
    if stem == "cifar":
        model.conv1 = torch.nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
        model.maxpool = torch.nn.Identity()
    return model


def train_one_step(name, stem, batch, size, dtype):
    """Returns (part, tensor name, tensor) for all that a training step computes."""
    model = make_model(name, stem, size).to(dtype)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(formula(key, tuple(parameter.shape)))
    if name == "gpt":  # `size` tokens each
        inputs = torch.tensor([(7 * i + i // 5) % 10 for i in range(batch * size)]).reshape(batch, size)
        labels = torch.tensor([(3 * i + 1) % 10 for i in range(batch * size)])
    else:
        shape = (batch, 3, size, size)
        images = torch.from_numpy((2 * uniform("images", int(np.prod(shape)))).astype(np.float32))
        inputs = images.reshape(shape).to(dtype)
        labels = torch.tensor([(3 * i + 1) % 10 for i in range(batch)])
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    logits = model(inputs)
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 10), labels)
    loss.backward()
    results = [("output", "loss", loss.detach().reshape(1)), ("output", "logits", logits.detach())]
    results += [("gradient", k, p.grad) for k, p in model.named_parameters()]
    optimizer.step()
    results += [("updated", k, p.detach()) for k, p in model.named_parameters()]
    return results + [("buffer", k, b.to(dtype)) for k, b in model.named_buffers()]


def initial_weights(name, seed):
    torch.manual_seed(seed)
    return [("initial", k, p.detach()) for k, p in make_model(name, "imagenet").named_parameters()]


def write_reference(path):
    with open(path, "w") as out:
        out.write("# Written by make_resnet_reference.py: one training step of torchvision's models.\n"
                  "# part name norm dot0 dot1, or the values themselves for 'output'\n")
        for case in CASES:
            out.write("case {} {} {} {}\n".format(*case))
            for part, key, tensor in train_one_step(*case, torch.float64):
                values = tensor.reshape(-1).double().numpy()
                if part != "output":
                    dots = []
                    for probe in range(PROBES):
                        bits = random_bits(f"{part} {key} probe {probe}", values.size)
                        dots.append(np.sum(np.where(bits >> np.uint64(63), -values, values)))
                    values = [np.sqrt(np.sum(values * values))] + dots
                out.write(f"{part} {key} " + " ".join(f"{v:.12g}" for v in values) + "\n")


def write_shapes(path):
    """Of every model a line with its name, then one for each parameter and buffer; none is drawn."""
    for name in ("kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "uniform_", "normal_", "trunc_normal_",
                 "constant_", "zeros_", "ones_"):
        setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
    with open(path, "w") as out:
        for name in SHAPES_OF:
            if name != "vit_s_16" and not hasattr(torchvision.models, name):
                continue
            model = make_model(name, "imagenet")
            out.write(f"model {name}\n")
            for part, tensors in ("parameter", model.named_parameters()), ("buffer", model.named_buffers()):
                for key, tensor in tensors:
                    out.write(" ".join([part, key, *map(str, tensor.shape)]) + "\n")


def write_raw(path, results):
    """A text line per tensor, an empty line, then their floats (native order) one after another."""
    with open(path, "wb") as out:
        for part, key, tensor in results:
            out.write(f"{part} {key} {tensor.numel()}\n".encode())
        out.write(b"\n")
        for _, _, tensor in results:
            out.write(tensor.contiguous().numpy().tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--raw")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--stem", default="imagenet")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--init_seed", type=int)
    parser.add_argument("--most", type=int)
    parser.add_argument("--shapes")
    parser.add_argument("--torch", default="")
    args = parser.parse_args()
    if args.torch and torch.__version__.split(".")[:2] != args.torch.split("."):
        print(f"torch is {torch.__version__}, not {args.torch}", file=sys.stderr)
        sys.exit(SKIP)
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.shapes:
        write_shapes(args.shapes)
    if args.out:
        write_reference(args.out)
    if args.raw and args.init_seed is not None:
        weights = initial_weights(args.model, args.init_seed)
        write_raw(args.raw, [(part, key, tensor.reshape(-1)[:args.most]) for part, key, tensor in weights])
    elif args.raw:
        write_raw(args.raw, train_one_step(args.model, args.stem, args.batch, args.size,
                                           torch.float32))


main()
