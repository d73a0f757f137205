#!/usr/bin/env python3
"""Writes step profiles of models that gradsync does not train: real tensors, derived times.

Usage: benchmarks/profiles/make_shapes.py [FOLDER]      default: the folder of this script

Tensors and their order are those of the public architectures:
  VGG-16       configuration D of Simonyan, Zisserman: "Very Deep Convolutional Networks for Large-Scale Image
               Recognition", 2014; 1000 classes
  BERT-large   Devlin, Chang, Lee, Toutanova: "BERT", 2018; uncased vocabulary, encoder and pooler

Times are arithmetic, not measurements. A layer's forward takes its multiply-adds, two operations each, at RATE; its
backward twice that (gradients of the input and of the weights), the first layer's only once. What is no multiply-add
(activations, pooling, normalisation, embeddings) takes none. A layer's gradients are complete when its backward ends.
The update reads gradient, parameter and momentum and writes the latter two, 20 bytes per parameter, at MEMORY.
"""

import json
import os
import sys

RATE = 10e12  # operations per second
MEMORY = 500e9  # bytes per second


class Layer:
    """`tensors`: (name, numel) in the order of registration; `macs`: multiply-adds of one sample's forward."""

    def __init__(self, tensors, macs):
        self.tensors = tensors
        self.macs = macs


def vgg16():
    layers = []
    channels, size, index = 3, 224, 0
    for widths in [(64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)]:
        for width in widths:
            name = "features.%d" % index
            weights = width * channels * 9
            layers.append(Layer([(name + ".weight", weights), (name + ".bias", width)], weights * size * size))
            channels = width
            index += 2  # a ReLU follows
        index += 1  # a pooling follows
        size //= 2
    inputs = channels * size * size
    for index, outputs in [(0, 4096), (3, 4096), (6, 1000)]:
        name = "classifier.%d" % index
        layers.append(Layer([(name + ".weight", inputs * outputs), (name + ".bias", outputs)], inputs * outputs))
        inputs = outputs
    return layers


def linear(name, inputs, outputs, tokens):
    return Layer([(name + ".weight", inputs * outputs), (name + ".bias", outputs)], inputs * outputs * tokens)


def norm(name, width):
    return Layer([(name + ".weight", width), (name + ".bias", width)], 0)


def bert_large(tokens):
    width, inner, vocabulary, positions = 1024, 4096, 30522, 512
    layers = [
        Layer([("embeddings.word_embeddings.weight", vocabulary * width),
               ("embeddings.position_embeddings.weight", positions * width),
               ("embeddings.token_type_embeddings.weight", 2 * width)], 0),
        norm("embeddings.LayerNorm", width),
    ]
    for i in range(24):
        name = "encoder.layer.%d." % i
        layers += [linear(name + "attention.self." + part, width, width, tokens) for part in ("query", "key", "value")]
        layers.append(Layer([], 2 * tokens * tokens * width))  # scores, and their product with the values
        layers += [
            linear(name + "attention.output.dense", width, width, tokens),
            norm(name + "attention.output.LayerNorm", width),
            linear(name + "intermediate.dense", width, inner, tokens),
            linear(name + "output.dense", inner, width, tokens),
            norm(name + "output.LayerNorm", width),
        ]
    layers.append(linear("pooler.dense", width, width, 1))
    return layers


def profile(model, note, layers, batch_size):
    def microseconds(layer):
        return 2 * layer.macs * batch_size / RATE * 1e6

    forward = sum(microseconds(layer) for layer in layers)
    computing = next(layer for layer in layers if layer.macs > 0)  # its input needs no gradient
    now = forward
    tensors = []
    for layer in reversed(layers):
        now += microseconds(layer) * (1 if layer is computing else 2)
        for name, numel in reversed(layer.tensors):
            tensors.append({"name": name, "numel": numel, "ready_us": round(now)})
    parameters = sum(tensor["numel"] for tensor in tensors)
    return {
        "model": model,
        "origin": "shapes",
        "note": "%d parameters; %s. Times are derived, not measured: multiply-adds at %g operations/s, backward twice "
                "forward, update 20 bytes per parameter at %g bytes/s; by make_shapes.py" %
                (parameters, note, RATE, MEMORY),
        "command": "benchmarks/profiles/make_shapes.py",
        "batch_size": batch_size,
        "threads": 1,
        "forward_us": round(forward),
        "backward_us": round(now) - round(forward),
        "update_us": round(20 * parameters / MEMORY * 1e6),
        "tensors": tensors,
    }


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    for model, note, layers, batch_size in [
        ("vgg16", "VGG-16 (D), images of 224x224, 1000 classes", vgg16(), 32),
        ("bert_large", "BERT-large, encoder and pooler, sequences of 128 tokens", bert_large(128), 32),
    ]:
        with open(os.path.join(folder, model + ".json"), "w", encoding="utf-8") as file:
            json.dump(profile(model, note, layers, batch_size), file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
