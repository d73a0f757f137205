// For tests that use gRPC, under `--config=tsan`. The system's gRPC is compiled without
// instrumentation, so the sanitizer does not see how it hands objects from thread to thread, and
// reports each one that code in gRPC's headers, or code that gRPC calls, touches on both sides.
// What threads of ours share is tested without gRPC as well, where nothing is hidden.

extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:grpc::\n"
         "race:grpc_core::\n"
         "race:grpc_event_engine::\n";
}
