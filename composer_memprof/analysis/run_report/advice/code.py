"""Code to paste for the changes that reports advise."""

from __future__ import annotations

CHECKPOINTED = (
    'from torch.utils.checkpoint import checkpoint\n\n'
    'x = checkpoint(block, x, use_reentrant=False)  # in place of x = block(x)'
)
SHARDED = "Trainer(…, parallelism_config={'fsdp': {}})  # FSDP_VERSION=2 in the environment for FSDP2"
AUTO_MICROBATCH = "Trainer(…, device_train_microbatch_size='auto')"
BF16 = "Trainer(…, precision='amp_bf16')"
FLASH = 'y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)'
EXPANDABLE = 'export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True'
SMALL_EVALUATION = "Evaluator(label='eval', dataloader=eval_dataloader, device_eval_microbatch_size=8)"
NO_GRAD = '@torch.no_grad()\ndef eval_forward(self, batch, outputs=None):\n    return self.forward(batch)  # in a loop: with torch.no_grad():'
NO_GRAD_PART = 'with torch.no_grad():\n    y = self.{}(x)'
FROZEN = 'model.{}.requires_grad_(False)  # before the first batch'
COPY_ON_HOST = 'model.{}.to("cpu")  # and in the update: average.lerp_(weight.detach().cpu(), 0.001)'
ON_HOST = 'state = {name: value.cpu() for name, value in model.state_dict().items()}'
SHARDED_CHECKPOINTS = "Trainer(…, parallelism_config={'fsdp': {'state_dict_type': 'sharded'}})"
UNITS = 'for block in model.blocks:\n    block._fsdp_wrap = True  # or fully_shard(block), before fully_shard(model)'
DRAWN_AT_ONCE = 'def __iter__(self):\n    return iter(torch.randperm(len(self.data)).tolist())'
WORKERS = 'DataLoader(…, num_workers={}, persistent_workers=True)'
PERSISTENT_WORKERS = 'DataLoader(…, persistent_workers=True)'
SHARED_MEMORY = 'docker run --ipc=host …  # or --shm-size=16g'
NO_WORKERS = 'DataLoader(…, num_workers=0)'
FILE_SYSTEM = (
    "ulimit -n 65536  # in the shell; or in the script: torch.multiprocessing.set_sharing_strategy('file_system')"
)
RESUME = "Trainer(…, run_name='mine', save_folder='checkpoints', save_interval='500ba', autoresume=True)"
PADDED = (
    'def collate(samples):\n'
    '    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)\n\n'
    'DataLoader(…, collate_fn=collate)'
)
UNUSED_PARAMETERS = "model.unused.requires_grad_(False)  # or Trainer(…, ddp_sync_strategy='forced_sync')"
SAME_DTYPE = 'x = x.to(next(model.parameters()).dtype)  # or in the data set: torch.as_tensor(x, dtype=torch.float32)'
CHECKED_INDICES = 'assert 0 <= indices.min() and indices.max() < size, (indices.min(), indices.max(), size)'
SAME_DEVICE = 'x = x.to(next(model.parameters()).device)'
NOT_IN_PLACE = 'h = h + 1  # in place of h += 1, h.add_(1)'
DETACHED_STATE = 'state = state.detach()  # before it is used in the next batch'
FEWER_CHECKPOINTS = 'Trainer(…, save_num_checkpoints_to_keep=2)  # and df -h on the folder'
BLOCKING = 'CUDA_LAUNCH_BLOCKING=1 composer train.py'
LOADED_ON_HOST = "state = torch.load('checkpoint.pt', map_location='cpu')\nmodel.load_state_dict(state)\ndel state"
LONGER_TIMEOUT = 'Trainer(…, dist_timeout=1800)'
RARE_EVALUATION = (
    "Trainer(…, eval_interval='1000ba', eval_subset_num_batches=100)\n"
    '# Transformers: TrainingArguments(…, eval_steps=1000); Lightning: Trainer(…, val_check_interval=1000)'
)
RARE_CHECKPOINTS = (
    "Trainer(…, save_interval='1000ba')\n"
    '# Transformers: TrainingArguments(…, save_steps=1000); Lightning: ModelCheckpoint(every_n_train_steps=1000)'
)
FREEZE = 'import gc\n\ngc.collect()\ngc.freeze()  # after the first batches'
COLLECT_TOGETHER = (
    'import gc\n\ngc.disable()  # before fit\nif state.timestamp.batch % 100 == 0:  # in a callback, at batch_end\n'
    '    gc.collect()'
)
DYNAMIC = 'torch.compile(model, dynamic=True)'
DETACHED = 'kept.append(x.detach().cpu())  # of a number: kept.append(loss.item())'
WITHOUT_GRAPH = 'kept.append(x.detach())  # of a number: total += loss.item()'
NEWEST = 'kept = collections.deque(maxlen=100)  # in place of a list; of a number: kept.append(loss.item())'
LONG_WINDOW = "Trainer(…, callbacks=[…, MemorySnapshot(skip_batches=10, interval='20ba')])"
WITH_MEMRAY = "Trainer(…, callbacks=[…, Memray(schedule={'skip': '100ba', 'active': '5ba'})])"
HALVED = 'x = x.to(torch.bfloat16)  # half; or x = x.cpu(), and x.cuda() where it is used'
COLLECT = 'import gc\n\ngc.collect()  # now and then, if the cycle has to stay'
IN_ARRAYS = (
    '# of numbers, or torch.tensor(rows):\n'
    'self.rows = numpy.asarray(rows)\n'
    '# of texts, which self.texts[index].as_py() reads:\n'
    'self.texts = pyarrow.array(texts)'
)
