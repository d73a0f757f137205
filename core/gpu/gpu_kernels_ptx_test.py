#!/usr/bin/env python3
"""Looks at what nvcc makes of the kernels: the bits of the CPU need every operation rounded by itself."""
import pathlib
import re
import unittest

# From the root of the runfiles, where tests start.
PTX = [pathlib.Path(f"core/gpu/{name}.cu.ptx") for name in ("gpu_kernels", "fold_kernel")]


class GpuKernelsPtxTest(unittest.TestCase):
    def setUp(self):
        text = re.sub(r"//[^\n]*", "", "".join(path.read_text() for path in PTX))
        self.kernels = re.findall(r"\.entry\s+(\w+)", text)
        self.instructions = re.findall(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.]*)\s", text, re.MULTILINE)

    def floating(self, *names):
        return {i for i in self.instructions if i.split(".")[0] in names and re.search(r"\.f(16|32|64)\b", i)}

    def test_all_kernels_are_there(self):
        for part in "ScaleTwice", "ScaleBy", "SgdStep", "AdamStep", "SumOfSquares", "FoldMean", "LookUpBytes":
            self.assertTrue([kernel for kernel in self.kernels if part in kernel], f"{part}: {self.kernels}")

    def test_nothing_is_multiplied_and_added_with_one_rounding(self):
        self.assertEqual(self.floating("fma", "mad"), set())

    # Without .rn an instruction leaves the contraction to who assembles it; .ftz flushes denormals.
    def test_every_operation_says_that_it_rounds_to_nearest_and_keeps_denormals(self):
        found = self.floating("add", "sub", "mul", "div", "sqrt", "rcp", "rsqrt")
        self.assertEqual({i for i in found if ".rn." not in i or ".ftz" in i}, set())
        self.assertLessEqual({"add.rn.f32", "mul.rn.f32", "div.rn.f32", "sqrt.rn.f32", "add.rn.f64", "mul.rn.f64"}, found)


if __name__ == "__main__":
    unittest.main()
