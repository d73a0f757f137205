// What a process says when it ends because it cannot go on.

#ifndef GRADSYNC_CORE_PROGRAM_LAST_WORDS_H_
#define GRADSYNC_CORE_PROGRAM_LAST_WORDS_H_

namespace gradsync {

// From now on a process says why it ends, in one line on stderr, and ends with exit code 1, where
// memory is not there (also that of a mapped file which was shortened), or where an exception leaves
// a thread. Where a library calls abort(), a line says so before SIGABRT ends the process. Call it
// first in main.
//
// A program that calls this function also ends so, with the limits that apply, when the system
// refuses to start a thread (EAGAIN of pthread_create()), whichever library asks for it and whenever:
// gRPC would wait for the missing thread for ever, OpenBLAS raises SIGINT, and std::thread throws. A
// thread that can be done without is asked for within RefusableThreads.
// For programs alone, not for shared libraries: it puts its own pthread_create() before the system's.
void SayWhyItEnds();

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PROGRAM_LAST_WORDS_H_
