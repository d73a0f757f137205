#ifndef GRADSYNC_BASE_FIRST_PROCESS_H_
#define GRADSYNC_BASE_FIRST_PROCESS_H_

namespace gradsync {

// The kernel keeps signals from the first process of a container for which it has no handler, so that
// SIGTERM would do nothing until it is killed. In such a process, SIGTERM and SIGINT end it from here
// on, at once, with the code 128 + the signal's number; in others they do what they do. Call it
// once, from main, before handlers for them are set.
void EndBySignalsAsFirstProcess();

}  // namespace gradsync

#endif  // GRADSYNC_BASE_FIRST_PROCESS_H_
