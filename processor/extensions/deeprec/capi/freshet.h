/* DeepRec Processor's C interface, answered by Freshet.

   Requests are tensorflow.eas.PredictRequest, replies tensorflow.eas.PredictResponse (predict.proto). Statuses are
   HTTP's: 200 with a reply; 400, 404, 413, 429, 503, 504 and 500 with an error message. output_data is allocated by
   malloc; the caller frees it. Every function may be called from any thread.

   model_config: JSON, {"repository": "/models"}; optional keys: "model" (required if the repository has several),
   "sessions", "threads", "poll_interval_s", "max_rows", "max_ids", "max_cells", "max_body_bytes". model_entry is
   ignored. */
#ifndef FRESHET_H
#define FRESHET_H
#ifdef __cplusplus
extern "C" {
#endif

/* Load the repository's models and keep them up to date. On failure: NULL, *state = -1, the reason on stderr. */
void *initialize(const char *model_entry, const char *model_config, int *state);

/* Make one prediction. With input_size 0: the same as get_serving_model_info. */
int process(void *model, const void *input_data, int input_size, void **output_data, int *output_size);

/* Make one prediction, with DeepRec's signature: the arrays have one element. */
int batch_process(void *model, const void *input_data[], int *input_size, void *output_data[], int *output_size);

/* Make `count` predictions concurrently, in shared batches; a status for each. */
void batch_process_n(void *model, int count, const void *input_data[], const int *input_size, void *output_data[],
                     int *output_size, int *status);

/* Return the served versions, their generation, freshness and memory, as JSON. */
int get_serving_model_info(void *model, void **output_data, int *output_size);

/* Release the model, which must not be used again. */
void freshet_close(void *model);

#ifdef __cplusplus
}
#endif
#endif
