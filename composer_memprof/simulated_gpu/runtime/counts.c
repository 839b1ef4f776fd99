/* Results whose size depends on values: nonzero, masks, unique, bincount. Their kernels count, and the host reads the
   count to allocate the result. No kernel runs, so the count is assumed: the figure `kept` says which part is kept.

   The kernels are CUB's and torch's own. They are told by their mangled names, and their parameters have been the same
   from CUDA 12 to 13. */

#include "simulated_gpu.h"

enum { NONE, COUNTS, COUNTS_PARTS, SUMS_PARTS, LEAVES_COUNTS, FILLS_BINS };

/* A kernel whose name contains `name` and `operator`. Parameter `out` is where it writes the count, in `bytes` bytes,
   and parameter `items` how many elements it goes through, which has `item_bytes`. */
typedef struct { int kind; const char *name, *operator; int out, bytes, items, item_bytes; } Kind;
static const Kind kinds[] = {
  /* nonzero and masks: a reduction in one step, or the first of two */
  {COUNTS, "28DeviceReduceSingleTileKernel", "9NonZeroOp", 1, 4, 2, 8},
  {COUNTS_PARTS, "18DeviceReduceKernel", "9NonZeroOp", 1, 4, 2, 8},
  /* unique of booleans */
  {COUNTS, "28DeviceReduceSingleTileKernel", "21MapNumberOfTrueValues", 1, 4, 2, 8},
  {COUNTS_PARTS, "18DeviceReduceKernel", "21MapNumberOfTrueValues", 1, 4, 2, 8},
  /* between that and its reading */
  {LEAVES_COUNTS, "24unique_bool_write_output", ""},
  {LEAVES_COUNTS, "33unique_bool_write_inverse_indices", ""},
  /* the second step of a reduction, of others too */
  {SUMS_PARTS, "28DeviceReduceSingleTileKernel", "", 1, 4},
  /* what nonzero counted is written there once more */
  {NONE, "23DeviceSelectSweepKernel", "9NonZeroOp"},
  /* unique: alone, with counts, along a dimension; coalesce of sparse tensors */
  {COUNTS, "23DeviceSelectSweepKernel", "", 3, 8, 7, 4},
  {COUNTS, "23DeviceReduceByKeyKernel", "", 4, 8, 9, 4},
  {COUNTS, "28DeviceUniqueByKeySweepKernel", "", 4, 8, 7, 4},
  {COUNTS, "8__unique11UniqueAgent", "", 3, 8, 4, 4},
  /* bincount without weights: its result and input are integers */
  {FILLS_BINS, "17kernelHistogram1DIlh", "", 0, 8, 6, 8},
  {FILLS_BINS, "17kernelHistogram1DIla", "", 0, 8, 6, 8},
  {FILLS_BINS, "17kernelHistogram1DIls", "", 0, 8, 6, 8},
  {FILLS_BINS, "17kernelHistogram1DIli", "", 0, 8, 6, 8},
  {FILLS_BINS, "17kernelHistogram1DIll", "", 0, 8, 6, 8},
};

/* Only names that begin so are searched: there are more than 20,000 kernels. */
static const char *const beginnings[] = {"_ZN14at_cuda_detail3cub", "_ZN3cub", "_ZN6thrust", "_ZN2at4cuda17", "_ZN2at6native8internal"};

enum { PLACES = 4096 };
static struct { const void *kernel; const Kind *kind; } known[PLACES]; /* by hash */
static int known_count;

static int place_of(const void *kernel) {
  int place = ((uintptr_t)kernel >> 4) % PLACES;
  while (known[place].kernel && known[place].kernel != kernel) place = (place + 1) % PLACES;
  return place;
}

static const Kind *kind_named(const char *name) {
  int may_count = 0;
  for (int i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
    may_count |= !strncmp(name, beginnings[i], strlen(beginnings[i]));
  for (int i = 0; may_count && i < sizeof kinds / sizeof *kinds; i++)
    if (strstr(name, kinds[i].name) && strstr(name, kinds[i].operator)) return kinds + i;
  return 0;
}

void remember_if_it_counts(const void *kernel, const char *name) {
  const Kind *kind = kind_named(name);
  if (!kind || kind->kind == NONE || known_count > PLACES / 2) return;
  int place = place_of(kernel);
  known_count += !known[place].kernel;
  known[place].kernel = kernel;
  known[place].kind = kind;
}

/* The part that is kept by what this thread runs next, as Python knows it; -1 if it does not. */
static __thread double known_part = -1;
void simulated_gpu_keep(double part) { known_part = part; }

static double kept(void) {
  static double part = -1;
  if (known_part >= 0) return known_part;
  if (part < 0) {
    char text[32];
    text_figure("kept", text, sizeof text);
    part = strtod(text, 0);
  }
  return part;
}

static void say_what_is_kept(void) {
  static char text[128];
  if (known_part >= 0) return;
  if (!*text) snprintf(text, sizeof text, "masks, nonzero and unique keep %g %% of their elements (--kept)", 100 * kept());
  assumed(text);
}

static void write_count(void **arguments, const Kind *kind, int64_t items) {
  int64_t count = items * kept() + 0.5;
  write_result(*(char **)arguments[kind->out], (char *)&count, kind->bytes);
  say_what_is_kept();
}

/* Every bin gets the same number of elements, the first ones one more. The bins' address begins the first parameter;
   the fourth is their number. */
static void fill_bins(void **arguments, int64_t items) {
  int64_t bins = *(int64_t *)arguments[3];
  char *out = *(char **)arguments[0];
  for (int64_t i = 0; i < bins && i < 4096; i++) {
    int64_t count = items / bins + (i < items % bins);
    write_result(out + 8 * i, (char *)&count, 8);
  }
  assumed("bincount spreads its elements evenly over minlength bins; without minlength there is one");
}

int write_if_it_counts(const void *kernel, void **arguments) {
  static __thread int64_t items_of_parts;
  const Kind *kind = known[place_of(kernel)].kind;
  if (!kind) return 0;
  int64_t items = kind->item_bytes == 8 ? *(int64_t *)arguments[kind->items]
                : kind->item_bytes == 4 ? *(int32_t *)arguments[kind->items] : items_of_parts;
  items_of_parts = 0;
  switch (kind->kind) {
    case COUNTS: write_count(arguments, kind, items); return 1;
    case LEAVES_COUNTS: return 1;
    case COUNTS_PARTS: items_of_parts = items; return 1;
    case SUMS_PARTS: if (items) write_count(arguments, kind, items); return items != 0;
    case FILLS_BINS: forget_what_was_written(); fill_bins(arguments, items); return 1;
  }
  return 0;
}
