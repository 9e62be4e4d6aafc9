/* DeepRec Processor's C interface, answered by Freshet.

   Requests are tensorflow.eas.PredictRequest, replies tensorflow.eas.PredictResponse (predict.proto). Statuses are
   HTTP's: 200 with a reply; 400, 404, 413, 429, 503, 504 and 500 with a message instead. What comes back by
   output_data was allocated by malloc, and is the caller's to free. Every function may be called from any thread.

   model_config: JSON, {"repository": "/models"}, and perhaps "model" (needed where the repository has several),
   "sessions", "threads", "poll_interval_s", "max_rows", "max_ids", "max_nodes", "max_body_bytes". model_entry is not
   looked at. */
#ifndef FRESHET_H
#define FRESHET_H
#ifdef __cplusplus
extern "C" {
#endif

/* Loads what the repository has, and keeps it up to date. NULL and *state = -1 when that fails; why is on stderr. */
void *initialize(const char *model_entry, const char *model_config, int *state);

/* One prediction. With input_size 0 the same as get_serving_model_info. */
int process(void *model, const void *input_data, int input_size, void **output_data, int *output_size);

/* One prediction, as DeepRec has it: the arrays have one element. */
int batch_process(void *model, const void *input_data[], int *input_size, void *output_data[], int *output_size);

/* As many as are said, side by side in the same batches; a status for each. */
void batch_process_n(void *model, int count, const void *input_data[], const int *input_size, void *output_data[],
                     int *output_size, int *status);

/* Versions, generation, freshness and memory of what is served, as JSON. */
int get_serving_model_info(void *model, void **output_data, int *output_size);

/* Ends what initialize began; the model is not to be used again. */
void freshet_close(void *model);

#ifdef __cplusplus
}
#endif
#endif
