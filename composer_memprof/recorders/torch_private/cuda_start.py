"""The start of CUDA in this process, which torch puts off until it is first used."""

from __future__ import annotations

from composer_memprof.recorders.torch_private import private

#: ``(function)``: call it once CUDA is started; now, if it is.
call_when_started = private('torch.cuda._lazy_call', seen='2.6 to 2.11', module=__name__)
