"""PyTorch's way to the backend "gradsync" of torch.distributed.

    torch.distributed.init_process_group("gradsync")

needs no import: PyTorch finds register() by the package's entry points, from 2.14 on when the name is first used, before that at
`import torch` (unless TORCH_DEVICE_BACKEND_AUTOLOAD=0; then `import gradsync.torch` does it).
"""
import warnings

NAME = "gradsync"


def _create(options, backend_options):
    from ._c10d import create

    return create(options, backend_options)


def register() -> None:
    """Tells torch.distributed the name. Does nothing else, and nothing when it knows it. Raises nothing, as that would break
    `import torch`: what is wrong is a warning."""
    try:
        import torch.distributed as dist

        if dist.is_available() and not hasattr(dist.Backend, NAME.upper()):
            dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    except Exception as error:
        warnings.warn(f"gradsync: torch.distributed does not take its backend: {error}", stacklevel=2)


register()
