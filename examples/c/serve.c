/* Predicts texts or token ids with a SavedModel through TensorFlow's C library, without Python.
 * TensorFlow Serving uses the same loader.
 *
 * Compile it against the library in the tensorflow wheel:
 *
 *     TF=$(python -c 'import tensorflow as tf; print(tf.sysconfig.get_lib())')
 *     gcc -O2 -Wall serve.c -o serve -I$TF/include $TF/libtensorflow_cc.so.2 \
 *         $TF/libtensorflow_framework.so.2 -Wl,-rpath,$TF
 *
 * At run time, pass the libraries of the tokenizer's ops (package tensorflow-text):
 *
 *     OPS=$(python -c 'import tensorflow_text as t; print(t.__path__[0])')/python/ops
 *     ./serve served/news/1 $OPS/_fast_bert_normalizer.so,$OPS/_fast_wordpiece_tokenizer.so \
 *         predict_text texts.txt
 *
 * FILE has one text per line; for signatures of token ids (predict_ids, predict_ids_xla) one line of
 * ids per text, separated by spaces. Each line is one request. The output has one line of
 * probabilities per request, separated by tabs. With several SIGNATURE FILE pairs, --time N runs line 1
 * of every pair, then line 2, and so on, N times. It prints the signature, the median and the 90th
 * percentile in milliseconds for each pair.
 *
 * Exit status: 0 success, 1 TensorFlow error (message on stderr), 2 wrong usage.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tstring.h"

#define MAX_PAIRS 8
#define NAME_BYTES 256
#define MAX_IDS 65536

static TF_Status *status;

static void fail(int code, const char *what, const char *which) {
  fprintf(stderr, "error: %s%s\n", what, which);
  exit(code);
}

static void check(const char *doing) {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "error: %s: %s\n", doing, TF_Message(status));
  exit(1);
}

/* -- Tensors of a signature: a small reader of the serialized MetaGraphDef ----------------------- */

typedef struct {
  const uint8_t *at, *end;
} Bytes;

/* Field numbers of tensorflow/core/protobuf/meta_graph.proto; an entry of a map has key 1, value 2. */
enum { KEY = 1, VALUE = 2, SIGNATURE_DEF = 5, INPUTS = 1, OUTPUTS = 2, TENSOR_NAME = 1 };

static uint64_t read_varint(Bytes *message) {
  uint64_t value = 0;
  for (int shift = 0; message->at < message->end && shift < 64; shift += 7) {
    uint8_t byte = *message->at++;
    value |= (uint64_t)(byte & 0x7F) << shift;
    if (byte < 0x80) break;
  }
  return value;
}

/* Advances past the next bytes field with this number and returns it in found; 0 if there is none. */
static int next_field(Bytes *message, uint64_t number, Bytes *found) {
  while (message->at < message->end) {
    uint64_t tag = read_varint(message);
    uint64_t left = (uint64_t)(message->end - message->at), size;
    switch (tag & 7) {
      case 0: read_varint(message); continue;
      case 1: size = 8; break;
      case 2: size = read_varint(message); left = (uint64_t)(message->end - message->at); break;
      case 5: size = 4; break;
      default: return 0;
    }
    if (size > left) return 0;
    *found = (Bytes){message->at, message->at + size};
    message->at += size;
    if (tag == (number << 3 | 2)) return 1;
  }
  return 0;
}

/* The value of a key in a map field. */
static int map_value(Bytes message, uint64_t number, const char *key, Bytes *value) {
  Bytes entry, name;
  while (next_field(&message, number, &entry)) {
    Bytes rest = entry;
    if (next_field(&rest, KEY, &name) && (size_t)(name.end - name.at) == strlen(key) &&
        !memcmp(name.at, key, strlen(key)))
      return next_field(&entry, VALUE, value);
  }
  return 0;
}

/* The graph's tensor ("StatefulPartitionedCall_2:0") behind an input or output of a signature. */
static int find_tensor(TF_Graph *graph, Bytes signature, uint64_t side, const char *key, TF_Output *tensor) {
  Bytes info, bytes;
  char name[NAME_BYTES] = "";
  if (!map_value(signature, side, key, &info) || !next_field(&info, TENSOR_NAME, &bytes)) return 0;
  snprintf(name, sizeof name, "%.*s", (int)(bytes.end - bytes.at), (const char *)bytes.at);
  char *colon = strrchr(name, ':');
  tensor->index = colon ? atoi(colon + 1) : 0;
  if (colon) *colon = 0;
  tensor->oper = TF_GraphOperationByName(graph, name);
  return tensor->oper != NULL;
}

/* -- Requests ------------------------------------------------------------------------------------ */

typedef struct {
  const char *name;
  int takes_ids;
  TF_Output inputs[2], output;
  char **lines;
  size_t *lengths, count;
  double *milliseconds;
  size_t timed;
} Signature;

static void find_signature(TF_Graph *graph, Bytes meta_graph, Signature *signature) {
  Bytes bytes;
  if (!map_value(meta_graph, SIGNATURE_DEF, signature->name, &bytes))
    fail(2, "the SavedModel has no signature ", signature->name);
  signature->takes_ids = find_tensor(graph, bytes, INPUTS, "token_ids", &signature->inputs[0]) &&
                         find_tensor(graph, bytes, INPUTS, "padding_mask", &signature->inputs[1]);
  if (!signature->takes_ids && !find_tensor(graph, bytes, INPUTS, "text", &signature->inputs[0]))
    fail(2, "expected the input text, or token_ids and padding_mask, in the signature ", signature->name);
  if (!find_tensor(graph, bytes, OUTPUTS, "probabilities", &signature->output))
    fail(2, "expected the output probabilities in the signature ", signature->name);
}

static void read_lines(const char *path, Signature *signature) {
  FILE *file = fopen(path, "rb");
  if (!file) fail(2, "cannot read ", path);
  char *line = NULL;
  size_t capacity = 0;
  ssize_t length;
  while ((length = getline(&line, &capacity, file)) >= 0) {
    if (length && line[length - 1] == '\n') line[--length] = 0;
    signature->lines = realloc(signature->lines, (signature->count + 1) * sizeof(char *));
    signature->lengths = realloc(signature->lengths, (signature->count + 1) * sizeof(size_t));
    signature->lines[signature->count] = line;
    signature->lengths[signature->count++] = (size_t)length;
    line = NULL;
    capacity = 0;
  }
  free(line);
  fclose(file);
}

static TF_Tensor *text_tensor(const char *text, size_t length) {
  int64_t shape[] = {1};
  TF_Tensor *tensor = TF_AllocateTensor(TF_STRING, shape, 1, sizeof(TF_TString));
  TF_TString *string = TF_TensorData(tensor);
  TF_StringInit(string);
  TF_StringCopy(string, text, length);
  return tensor;
}

static TF_Tensor *ids_tensor(const int32_t *values, size_t count) {
  int64_t shape[] = {1, (int64_t)count};
  TF_Tensor *tensor = TF_AllocateTensor(TF_INT32, shape, 2, count * sizeof(int32_t));
  if (count) memcpy(TF_TensorData(tensor), values, count * sizeof(int32_t));
  return tensor;
}

/* Runs one line; the caller deletes the returned tensor, float32 [1, C]. */
static TF_Tensor *predict(TF_Session *session, const Signature *signature, size_t line) {
  static int32_t ids[MAX_IDS], mask[MAX_IDS];
  TF_Tensor *inputs[2] = {NULL, NULL}, *output = NULL;
  if (signature->takes_ids) {
    size_t count = 0;
    char *at = signature->lines[line], *end;
    for (long id = strtol(at, &end, 10); end != at && count < MAX_IDS; id = strtol(at, &end, 10)) {
      ids[count] = (int32_t)id;
      mask[count++] = 1;
      at = end;
    }
    inputs[0] = ids_tensor(ids, count);
    inputs[1] = ids_tensor(mask, count);
  } else {
    inputs[0] = text_tensor(signature->lines[line], signature->lengths[line]);
  }
  TF_SessionRun(session, NULL, signature->inputs, inputs, signature->takes_ids ? 2 : 1, &signature->output, &output,
                1, NULL, 0, NULL, status);
  check(signature->name);
  TF_DeleteTensor(inputs[0]);
  if (inputs[1]) TF_DeleteTensor(inputs[1]);
  return output;
}

static void print_predictions(TF_Session *session, const Signature *signature) {
  for (size_t line = 0; line < signature->count; line++) {
    TF_Tensor *output = predict(session, signature, line);
    const float *probabilities = TF_TensorData(output);
    for (int64_t i = 0; i < TF_Dim(output, 1); i++) printf("%s%.9g", i ? "\t" : "", probabilities[i]);
    printf("\n");
    TF_DeleteTensor(output);
  }
}

/* -- Timing -------------------------------------------------------------------------------------- */

static double now_milliseconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e3 * time.tv_sec + 1e-6 * time.tv_nsec;
}

static int by_size(const void *a, const void *b) {
  double first = *(const double *)a, second = *(const double *)b;
  return (first > second) - (first < second);
}

/* The signatures alternate, so that other load on the machine slows all of them equally. */
static void time_signatures(TF_Session *session, Signature *signatures, int pairs, int repeats) {
  for (int pair = 0; pair < pairs; pair++) {
    if (!signatures[pair].count) fail(2, "expected at least one line for ", signatures[pair].name);
    signatures[pair].milliseconds = malloc(signatures[pair].count * (size_t)repeats * sizeof(double));
  }
  /* The first round is a warm-up and is not counted. */
  for (int repeat = -1; repeat < repeats; repeat++)
    for (size_t line = 0, more = 1; more; line++) {
      more = 0;
      for (int pair = 0; pair < pairs; pair++) {
        Signature *signature = &signatures[pair];
        if (line >= signature->count) continue;
        more = 1;
        double start = now_milliseconds();
        TF_DeleteTensor(predict(session, signature, line));
        if (repeat >= 0) signature->milliseconds[signature->timed++] = now_milliseconds() - start;
      }
    }
  for (int pair = 0; pair < pairs; pair++) {
    Signature *signature = &signatures[pair];
    qsort(signature->milliseconds, signature->timed, sizeof(double), by_size);
    printf("%s\t%.4f\t%.4f\n", signature->name, signature->milliseconds[signature->timed / 2],
           signature->milliseconds[signature->timed * 9 / 10]);
  }
}

/* -- The program --------------------------------------------------------------------------------- */

static void load_ops(char *paths) {
  for (char *path = strtok(paths, ","); path; path = strtok(NULL, ",")) {
    TF_LoadLibrary(path, status);
    check(path);
  }
}

int main(int count, char **arguments) {
  int repeats = 0;
  if (count > 2 && !strcmp(arguments[1], "--time")) {
    repeats = atoi(arguments[2]);
    if (repeats < 1) fail(2, "--time: expected a positive number, got ", arguments[2]);
    arguments += 2;
    count -= 2;
  }
  int pairs = (count - 3) / 2;
  if (count < 5 || count % 2 == 0 || pairs > MAX_PAIRS || (!repeats && pairs > 1)) {
    fprintf(stderr, "usage: serve [--time N] SAVEDMODEL OPS.so,... SIGNATURE FILE [SIGNATURE FILE ...]\n");
    return 2;
  }
  status = TF_NewStatus();
  load_ops(arguments[2]);
  TF_SessionOptions *options = TF_NewSessionOptions();
  TF_Graph *graph = TF_NewGraph();
  TF_Buffer *meta_graph = TF_NewBuffer();
  const char *tags[] = {"serve"};
  TF_Session *session =
      TF_LoadSessionFromSavedModel(options, NULL, arguments[1], tags, 1, graph, meta_graph, status);
  check(arguments[1]);

  Signature signatures[MAX_PAIRS] = {0};
  const uint8_t *start = meta_graph->data;
  for (int pair = 0; pair < pairs; pair++) {
    signatures[pair].name = arguments[3 + 2 * pair];
    find_signature(graph, (Bytes){start, start + meta_graph->length}, &signatures[pair]);
    read_lines(arguments[4 + 2 * pair], &signatures[pair]);
  }
  if (repeats)
    time_signatures(session, signatures, pairs, repeats);
  else
    print_predictions(session, &signatures[0]);

  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteGraph(graph);
  TF_DeleteBuffer(meta_graph);
  TF_DeleteSessionOptions(options);
  TF_DeleteStatus(status);
  return 0;
}
