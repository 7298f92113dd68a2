/* pth.c: files and pickles of PyTorch. Before 1.6 a file was five pickles (a magic number, a
 * version, the machine, the object, the storages' keys), then each storage: its length, elements.
 *
 * Pickles are a stack machine's program. Values live in the arena: each opcode makes one at most,
 * so memory is bounded by the file's size; nothing recurses, and lists may hold themselves.
 *
 *     MARK, 'fc.weight', GLOBAL rebuild, MARK, MARK 'storage' GLOBAL FloatStorage '0' 'cpu' 640
 *     TUPLE, BINPERSID, 0, (10, 64), (64, 1), False, OrderedDict(), TUPLE, REDUCE, ..., SETITEMS
 */
#include "weights/pth.h"

#include "base/num.h"
#include "data/parse.h"

#define REMEDY                                                                                     \
    "; save the tensors alone: torch.save(model.state_dict(), FILE), or "                          \
    "safetensors.torch.save_file(model.state_dict(), FILE)"

typedef struct entry {
    const char *name;
    const uint8_t *data;
    uint64_t bytes;
} entry;

typedef struct file {
    const uint8_t *at;
    uint64_t size;
    const char *path;
    ll_arena *arena;
    entry *entries;
    int n, capacity;
    const char *folder; /* of the entries, with its '/'; NULL: not a zip file */
} file;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

static ll_err read_directory(file *f)
{
    ll_zip_entry e;
    for (size_t at = 0;;) {
        TRY(ll_zip_next(f->at, f->size, f->path, &at, &e));
        if (!e.data) break;
        CHECK(!e.packed, LL_E_IO, "%s: %.*s is compressed, which torch.save does not do" REMEDY,
              f->path, (int)(e.name_size < 80 ? e.name_size : 80), e.name);
        const char *name = ll_arena_printf(f->arena, "%.*s", (int)e.name_size, e.name);
        LL_PUSH(f->arena, f->entries, f->n, f->capacity, (entry){name, e.data, e.size});
    }
    if (f->n) qsort(f->entries, (size_t)f->n, sizeof *f->entries, by_name);
    return LL_OK;
}

static const entry *find_entry(const file *f, const char *below)
{
    entry key = {.name = ll_arena_printf(f->arena, "%s%s", f->folder, below)};
    if (!f->n) return NULL;
    return (const entry *)bsearch(&key, f->entries, (size_t)f->n, sizeof key, by_name);
}

/* ---- values ---- */

typedef enum kind { NONE, NUMBER, TEXT, MARK, TUPLE, LIST, DICT, GLOBAL, STORAGE, TENSOR } kind;

typedef struct value {
    kind kind;
    int64_t number;
    const char *text;    /* TEXT; GLOBAL: "torch.FloatStorage" */
    struct value **item; /* TUPLE, LIST; DICT: keys and values in turn */
    int n, capacity;
    ll_weight tensor;        /* TENSOR: number is where it begins in its storage */
    const struct type *type; /* STORAGE: number is how many elements it has, text its key */
    const uint8_t *data;     /* STORAGE */
    const struct value *storage;
    const char *marked; /* TENSOR: how its elements differ from what is stored; NULL: they do not */
} value;

static const struct type {
    const char *name, *type;
    int bytes;
    ll_dtype dtype;
} storages[] = {
    {"torch.FloatStorage", "F32", 4, LL_F32},
    {"torch.HalfStorage", "F16", 2, LL_F16},
    {"torch.BFloat16Storage", "BF16", 2, LL_BF16},
    {"torch.DoubleStorage", "F64", 8, LL_F64},
    {"torch.IntStorage", "I32", 4, LL_I32},
    {"torch.ByteStorage", "U8", 1, LL_U8},
    {"torch.LongStorage", "I64", 8, LL_N_DTYPE},
    {"torch.ShortStorage", "I16", 2, LL_N_DTYPE},
    {"torch.CharStorage", "I8", 1, LL_N_DTYPE},
    {"torch.BoolStorage", "BOOL", 1, LL_N_DTYPE},
    {"torch.ComplexFloatStorage", "C64", 8, LL_N_DTYPE},
};
static const char rebuild_tensor[] = "torch._utils._rebuild_tensor_v2";
static const char rebuild_parameter[] = "torch._utils._rebuild_parameter";
static const char ordered_dict[] = "collections.OrderedDict";

static const struct type *find_storage(const char *name)
{
    for (size_t i = 0; i < sizeof storages / sizeof *storages; i++)
        if (!strcmp(name, storages[i].name)) return &storages[i];
    return NULL;
}

typedef struct machine {
    file *f;
    const uint8_t *at, *end; /* of the pickle */
    value **stack, **memo;
    int n_stack, stack_room, n_memo, memo_room;
    value **storages; /* of a file before 1.6, each once */
    int n_storage, storage_room;
} machine;

static ll_err bad(const machine *m, const char *what)
{
    FAIL(LL_E_IO, "%s: its pickle is not a state_dict: %s" REMEDY, m->f->path, what);
}

static value *new_value(machine *m, kind k)
{
    value *v = LL_NEW(m->f->arena, value);
    v->kind = k;
    return v;
}

static void push(machine *m, value *v)
{
    LL_PUSH(m->f->arena, m->stack, m->n_stack, m->stack_room, v);
}

static ll_err pop(machine *m, value **out)
{
    if (!m->n_stack) return bad(m, "it reads beyond its stack");
    *out = m->stack[--m->n_stack];
    return LL_OK;
}

static ll_err take(machine *m, uint64_t n, const uint8_t **out)
{
    if (n > (uint64_t)(m->end - m->at)) return bad(m, "it is truncated");
    *out = m->at;
    m->at += n;
    return LL_OK;
}

/* A number of so many bytes. */
static ll_err take_number(machine *m, int bytes, uint64_t *out)
{
    const uint8_t *p;
    TRY(take(m, (uint64_t)bytes, &p));
    *out = ll_le(p, bytes);
    return LL_OK;
}

static void add(machine *m, value *to, value *v)
{
    LL_PUSH(m->f->arena, to->item, to->n, to->capacity, v);
}

/* The stack's values from index first on, as a tuple's. */
static value *gather(machine *m, int first)
{
    value *t = new_value(m, TUPLE);
    for (int i = first; i < m->n_stack; i++) add(m, t, m->stack[i]);
    m->n_stack = first;
    return t;
}

static ll_err to_mark(machine *m, value **out)
{
    int i = m->n_stack;
    while (i > 0 && m->stack[i - 1]->kind != MARK) i--;
    if (!i) return bad(m, "it reads beyond its stack");
    *out = gather(m, i);
    m->n_stack--;
    return LL_OK;
}

static ll_err push_text(machine *m, uint64_t n)
{
    const uint8_t *p;
    TRY(take(m, n, &p));
    if (memchr(p, 0, n)) return bad(m, "a name has a zero byte");
    value *v = new_value(m, TEXT);
    char *text = (char *)ll_arena_alloc(m->f->arena, n + 1);
    memcpy(text, p, n);
    v->text = text;
    push(m, v);
    return LL_OK;
}

/* ---- what may be named and called ---- */

static ll_err push_global(machine *m, const char *module, const char *name)
{
    value *v = new_value(m, GLOBAL);
    v->text = ll_arena_printf(m->f->arena, "%.100s.%.100s", module, name);
    CHECK(!strcmp(v->text, rebuild_tensor) || !strcmp(v->text, rebuild_parameter) ||
              !strcmp(v->text, ordered_dict) || find_storage(v->text),
          LL_E_IO,
          "%s: its pickle names %s, but only tensors and dictionaries of them are supported" REMEDY,
          m->f->path, v->text);
    push(m, v);
    return LL_OK;
}

/* Two lines of text. */
static ll_err read_global(machine *m)
{
    char word[2][101];
    for (int i = 0; i < 2; i++) {
        const uint8_t *end = (const uint8_t *)memchr(m->at, '\n', (size_t)(m->end - m->at));
        if (!end || end - m->at > 100) return bad(m, "a name is truncated or too long");
        memcpy(word[i], m->at, (size_t)(end - m->at));
        word[i][end - m->at] = '\0';
        m->at = end + 1;
    }
    return push_global(m, word[0], word[1]);
}

static ll_err too_short(const machine *m, const value *v, uint64_t bytes)
{
    FAIL(LL_E_IO, "%s: storage %.40s has %lu bytes, not %ld elements of %s", m->f->path, v->text,
         bytes, v->number, v->type->type);
}

static int64_t storage_bytes(const value *v)
{
    int64_t bytes;
    return v->number < 0 || __builtin_mul_overflow(v->number, (int64_t)v->type->bytes, &bytes)
               ? INT64_MAX
               : bytes;
}

/* Its elements: an entry of the zip file; before 1.6 they are behind all pickles. */
static ll_err find_data(machine *m, value *v)
{
    if (!m->f->folder) {
        LL_PUSH(m->f->arena, m->storages, m->n_storage, m->storage_room, v);
        return LL_OK;
    }
    const entry *e = find_entry(m->f, ll_arena_printf(m->f->arena, "data/%s", v->text));
    CHECK(e, LL_E_IO, "%s has no entry data/%.40s, which its pickle names", m->f->path, v->text);
    if ((uint64_t)storage_bytes(v) > e->bytes) return too_short(m, v, e->bytes);
    v->data = e->data;
    return LL_OK;
}

/* ('storage', torch.FloatStorage, '0', 'cpu', 640), before 1.6 with None or a view behind it */
static ll_err open_storage(machine *m)
{
    value *id;
    TRY(pop(m, &id));
    value *const *x = id->item;
    if (id->kind != TUPLE || id->n != (m->f->folder ? 5 : 6) || x[1]->kind != GLOBAL ||
        x[2]->kind != TEXT || x[4]->kind != NUMBER || !find_storage(x[1]->text) ||
        (id->n == 6 && x[5]->kind != NONE))
        return bad(m, "a storage is not described as torch.save does");
    value *v = new_value(m, STORAGE);
    v->type = find_storage(x[1]->text);
    v->number = x[4]->number;
    v->text = x[2]->text;
    TRY(find_data(m, v));
    push(m, v);
    return LL_OK;
}

/* Does the last element, and so every one, lie in the storage? */
static bool reaches(const value *storage, uint64_t first, const ll_weight *t)
{
    uint64_t last = first, far;
    for (int d = 0; d < t->shape.n; d++) {
        if (t->shape.d[d] == 0) return true;
        if (__builtin_mul_overflow((uint64_t)t->shape.d[d] - 1, (uint64_t)t->stride[d], &far) ||
            __builtin_add_overflow(last, far, &last))
            return false;
    }
    return last < (uint64_t)storage->number;
}

/* (storage, offset, size, stride, requires_grad, hooks), and {'neg': True} of a lazy view */
static ll_err build_tensor(machine *m, const value *args)
{
    value *const *x = args->item;
    if (args->n < 4 || args->n > 7 || x[0]->kind != STORAGE || x[1]->kind != NUMBER ||
        x[2]->kind != TUPLE || x[3]->kind != TUPLE || x[2]->n != x[3]->n || x[1]->number < 0)
        return bad(m, "a tensor is not described as torch.save does");
    const struct type *type = x[0]->type;
    value *v = new_value(m, TENSOR);
    ll_weight *t = &v->tensor;
    *t = (ll_weight){.type = type->type, .dtype = type->dtype};
    t->shape.n = x[2]->n <= LL_MAX_DIMS ? x[2]->n : -1;
    int64_t numel = 1;
    for (int d = 0; d < t->shape.n; d++) {
        if (x[2]->item[d]->kind != NUMBER || x[3]->item[d]->kind != NUMBER)
            return bad(m, "a tensor's size is not a number");
        t->shape.d[d] = x[2]->item[d]->number;
        t->stride[d] = x[3]->item[d]->number;
        if (t->shape.d[d] < 0 || t->stride[d] < 0 ||
            __builtin_mul_overflow(numel, t->shape.d[d], &numel))
            return bad(m, "a tensor's size is out of range");
    }
    if (t->shape.n >= 0 && !reaches(x[0], (uint64_t)x[1]->number, t))
        return bad(m, "a tensor extends beyond its storage");
    if (numel) v->storage = x[0];
    v->number = x[1]->number;
    const value *marks = args->n == 7 ? x[6] : NULL;
    if (marks && marks->kind != NONE && (marks->kind != DICT || marks->n))
        v->marked =
            marks->kind == DICT && marks->item[0]->kind == TEXT ? marks->item[0]->text : "?";
    push(m, v);
    return LL_OK;
}

static ll_err call(machine *m)
{
    value *args, *what;
    TRY(pop(m, &args));
    TRY(pop(m, &what));
    if (what->kind != GLOBAL || args->kind != TUPLE)
        return bad(m, "it calls something that is not a function");
    if (!strcmp(what->text, rebuild_tensor)) return build_tensor(m, args);
    if (!strcmp(what->text, rebuild_parameter) && args->n && args->item[0]->kind == TENSOR) {
        push(m, args->item[0]);
        return LL_OK;
    }
    if (strcmp(what->text, ordered_dict) || args->n)
        return bad(m, "it calls a function in a way torch.save does not");
    push(m, new_value(m, DICT));
    return LL_OK;
}

/* ---- opcodes ---- */

static ll_err push_number(machine *m, int bytes, bool is_signed)
{
    uint64_t v = 0;
    const uint8_t *magic;
    if (bytes > 8 && !m->f->folder) { /* the first pickle's, by which the file is known already */
        push(m, new_value(m, NONE));
        return take(m, (uint64_t)bytes, &magic);
    }
    if (bytes > 8) return bad(m, "a number is too large");
    if (bytes) TRY(take_number(m, bytes, &v));
    if (is_signed && bytes && bytes < 8 && v >> (8 * bytes - 1)) v -= 1ull << (8 * bytes);
    value *x = new_value(m, NUMBER);
    x->number = (int64_t)v;
    push(m, x);
    return LL_OK;
}

static ll_err put(machine *m, uint64_t i)
{
    if (!m->n_stack || i > (uint64_t)m->n_memo) return bad(m, "its memo has a hole");
    if (i == (uint64_t)m->n_memo) LL_PUSH(m->f->arena, m->memo, m->n_memo, m->memo_room, NULL);
    m->memo[i] = m->stack[m->n_stack - 1];
    return LL_OK;
}

static ll_err get(machine *m, uint64_t i)
{
    if (i >= (uint64_t)m->n_memo) return bad(m, "its memo has a hole");
    push(m, m->memo[i]);
    return LL_OK;
}

/* What is above the mark, or the top n, goes into the list or dictionary below. */
static ll_err extend(machine *m, kind into, int n)
{
    value *more;
    if (!n)
        TRY(to_mark(m, &more));
    else if (m->n_stack >= n)
        more = gather(m, m->n_stack - n);
    else
        return bad(m, "it reads beyond its stack");
    value *to = m->n_stack ? m->stack[m->n_stack - 1] : NULL;
    if (!to || to->kind != into || (into == DICT && more->n % 2))
        return bad(m, "it adds to something that is not a list or dictionary");
    for (int i = 0; i < more->n; i++) add(m, to, more->item[i]);
    return LL_OK;
}

static ll_err push_tuple(machine *m, int n)
{
    if (m->n_stack < n) return bad(m, "it reads beyond its stack");
    push(m, gather(m, m->n_stack - n));
    return LL_OK;
}

/* Attributes of a dictionary, which say nothing of its tensors. */
static ll_err build(machine *m)
{
    value *state;
    TRY(pop(m, &state));
    if (!m->n_stack || m->stack[m->n_stack - 1]->kind != DICT)
        return bad(m, "it sets attributes of something that is not a dictionary");
    return LL_OK;
}

static ll_err stack_global(machine *m)
{
    value *name, *module;
    TRY(pop(m, &name));
    TRY(pop(m, &module));
    if (name->kind != TEXT || module->kind != TEXT) return bad(m, "a name is not a string");
    return push_global(m, module->text, name->text);
}

/* Bytes of opcodes that are a number, then what the number says. */
static ll_err step(machine *m, uint8_t code)
{
    uint64_t n = 0;
    const uint8_t *skipped;
    value *v;
    switch (code) {
    case 0x80: return take(m, 1, &skipped); /* protocol */
    case 0x95: return take(m, 8, &skipped); /* frame */
    case '(': push(m, new_value(m, MARK)); return LL_OK;
    case 'N': push(m, new_value(m, NONE)); return LL_OK;
    case '}': push(m, new_value(m, DICT)); return LL_OK;
    case ']': push(m, new_value(m, LIST)); return LL_OK;
    case ')': return push_tuple(m, 0);
    case 0x85: return push_tuple(m, 1);
    case 0x86: return push_tuple(m, 2);
    case 0x87: return push_tuple(m, 3);
    case 't':
        TRY(to_mark(m, &v));
        push(m, v);
        return LL_OK;
    case 0x88:
        TRY(push_number(m, 0, false));
        m->stack[m->n_stack - 1]->number = 1;
        return LL_OK;
    case 0x89: return push_number(m, 0, false);
    case 'K': return push_number(m, 1, false);
    case 'M': return push_number(m, 2, false);
    case 'J': return push_number(m, 4, true);
    case 0x8a: TRY(take_number(m, 1, &n)); return push_number(m, (int)n, true);
    case 'G':
        TRY(take(m, 8, &skipped));
        push(m, new_value(m, NONE));
        return LL_OK; /* float */
    case 'X': TRY(take_number(m, 4, &n)); return push_text(m, n);
    case 0x8c: TRY(take_number(m, 1, &n)); return push_text(m, n);
    case 'q': TRY(take_number(m, 1, &n)); return put(m, n);
    case 'r': TRY(take_number(m, 4, &n)); return put(m, n);
    case 0x94: return put(m, (uint64_t)m->n_memo);
    case 'h': TRY(take_number(m, 1, &n)); return get(m, n);
    case 'j': TRY(take_number(m, 4, &n)); return get(m, n);
    case 'c': return read_global(m);
    case 0x93: return stack_global(m);
    case 'Q': return open_storage(m);
    case 'R': return call(m);
    case 'b': return build(m);
    case 's': return extend(m, DICT, 2);
    case 'u': return extend(m, DICT, 0);
    case 'a': return extend(m, LIST, 1);
    case 'e': return extend(m, LIST, 0);
    }
    FAIL(LL_E_IO, "%s: its pickle has opcode 0x%02x, which a state_dict never has" REMEDY,
         m->f->path, code);
}

/* ---- which tensors ---- */

static int count_tensors(const value *d)
{
    int n = 0;
    for (int i = 0; d->kind == DICT && i < d->n; i += 2)
        n += d->item[i]->kind == TEXT && d->item[i + 1]->kind == TENSOR;
    return n;
}

/* A dictionary of tensors, or the one in it: {"epoch": 3, "state_dict": {...}}. */
static ll_err find_dict(const machine *m, const value *root, const value **out)
{
    static const char *const usual[] = {"state_dict", "model_state_dict", "model"};
    const value *found = NULL;
    int n = 0;
    *out = root;
    if (root->kind != DICT) return bad(m, "it is not a dictionary");
    for (size_t k = 0; k < sizeof usual / sizeof *usual; k++)
        for (int i = 0; i < root->n; i += 2)
            if (root->item[i]->kind == TEXT && !strcmp(root->item[i]->text, usual[k]) &&
                count_tensors(root->item[i + 1])) {
                *out = root->item[i + 1];
                return LL_OK;
            }
    if (count_tensors(root)) return LL_OK;
    for (int i = 0; i < root->n; i += 2)
        if (count_tensors(root->item[i + 1])) found = root->item[i + 1], n++;
    if (n != 1) return bad(m, n ? "it has several dictionaries of tensors" : "it has no tensor");
    *out = found;
    return LL_OK;
}

static ll_err run(machine *m, value **out)
{
    const uint8_t *op;
    for (;;) {
        TRY(take(m, 1, &op));
        if (*op == '.') return pop(m, out);
        TRY(step(m, *op));
    }
}

static ll_err find_pickle(file *f, const entry **out)
{
    for (int i = 0; i < f->n; i++) {
        const char *name = f->entries[i].name, *slash = strchr(name, '/');
        if (!slash || strcmp(slash + 1, "data.pkl")) continue;
        f->folder = ll_arena_printf(f->arena, "%.*s", (int)(slash + 1 - name), name);
        *out = &f->entries[i];
        const entry *order = find_entry(f, "byteorder");
        CHECK(!order || order->bytes != 3 || memcmp(order->data, "big", 3), LL_E_IO,
              "%s was written on a machine with another byte order" REMEDY, f->path);
        return LL_OK;
    }
    FAIL(LL_E_IO,
         "%s is a zip file without data.pkl, so not written by torch.save (TorchScript and "
         "archives are not supported)" REMEDY,
         f->path);
}

/* The value of a text of a dictionary; NULL: there is none. */
static const value *under(const value *d, const char *key)
{
    for (int i = 0; d->kind == DICT && i < d->n; i += 2)
        if (d->item[i]->kind == TEXT && !strcmp(d->item[i]->text, key)) return d->item[i + 1];
    return NULL;
}

static int by_text(const void *a, const void *b)
{
    return strcmp((*(value *const *)a)->text, (*(value *const *)b)->text);
}

/* Each key's storage in turn: how many elements, and these. It may be named several times. */
static ll_err read_storages(machine *m, const value *keys)
{
    value **all = m->storages, **end = all + m->n_storage;
    if (keys->kind != LIST) return bad(m, "its storages are not listed");
    if (m->n_storage) qsort(all, (size_t)m->n_storage, sizeof *all, by_text);
    for (int i = 0; i < keys->n; i++) {
        value *key = keys->item[i], **v = NULL;
        const uint8_t *data = NULL;
        uint64_t n;
        if (key->kind != TEXT) return bad(m, "a storage's name is not a string");
        if (m->n_storage)
            v = (value **)bsearch(&key, all, (size_t)m->n_storage, sizeof *all, by_text);
        if (!v) return bad(m, "it has a storage that no tensor names");
        TRY(take_number(m, 8, &n));
        uint64_t left = (uint64_t)(m->end - m->at), bytes = (uint64_t)storage_bytes(*v);
        if (bytes > left) return too_short(m, *v, left);
        TRY(take(m, bytes, &data));
        while (v > all && !strcmp(v[-1]->text, key->text)) v--;
        for (; v < end && !strcmp((*v)->text, key->text); v++) {
            if ((*v)->data || (uint64_t)(*v)->number != n || (uint64_t)storage_bytes(*v) != bytes)
                return bad(m, "a storage has another length");
            (*v)->data = data;
        }
    }
    return LL_OK;
}

/* A file from before 1.6. */
static ll_err run_old(machine *m, value **out)
{
    enum { MACHINE = 2, OBJECT = 3, KEYS = 4 };
    value *part[KEYS + 1];
    for (int i = 0; i <= KEYS; i++) {
        m->n_stack = m->n_memo = 0;
        TRY(run(m, &part[i]));
    }
    const value *little = under(part[MACHINE], "little_endian");
    CHECK(little && little->number, LL_E_IO,
          "%s is a plain pickle, or was written on a machine with another byte order" REMEDY,
          m->f->path);
    *out = part[OBJECT];
    return read_storages(m, part[KEYS]);
}

ll_err ll_pth_parse(const uint8_t *bytes, size_t size, ll_weights *w)
{
    file f = {.at = bytes, .size = size, .path = w->path, .arena = w->arena};
    const entry *pickle = NULL;
    value *root = NULL;
    const value *dict = NULL;
    machine m = {.f = &f, .at = bytes, .end = bytes + size};
    if (size >= 4 && !memcmp(bytes, "PK\3\4", 4)) {
        TRY(read_directory(&f));
        TRY(find_pickle(&f, &pickle));
        m.at = pickle->data, m.end = pickle->data + pickle->bytes;
        TRY(run(&m, &root));
    } else
        TRY(run_old(&m, &root));
    TRY(find_dict(&m, root, &dict));
    w->all = LL_NEW_ARRAY(w->arena, ll_weight, count_tensors(dict));
    for (int i = 0; i < dict->n; i += 2) {
        const value *t = dict->item[i + 1], *from = t->storage;
        if (dict->item[i]->kind != TEXT || t->kind != TENSOR) continue;
        if (from && !from->data) return bad(&m, "a tensor's storage is missing");
        CHECK(!t->marked, LL_E_IO,
              "%s: tensor %.80s is a view marked '%.20s', which its stored elements are without; "
              "save t.resolve_neg().resolve_conj() of it",
              f.path, dict->item[i]->text, t->marked);
        w->all[w->n] = t->tensor;
        if (from)
            w->all[w->n].data = from->data + (uint64_t)t->number * (uint64_t)from->type->bytes;
        w->all[w->n++].name = dict->item[i]->text;
    }
    return LL_OK;
}
