"""The experimental options of torch's profiler."""

from __future__ import annotations

from composer_memprof.recorders.torch_private import private

#: The class of ``torch.profiler.profile(experimental_config=…)``.
ExperimentalConfig = private('torch._C._profiler._ExperimentalConfig', module=__name__)
