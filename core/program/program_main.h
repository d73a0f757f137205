// What belongs to the process as a whole: its paths, its signals and its end. Only for main files.

#ifndef GRADSYNC_CORE_PROGRAM_PROGRAM_MAIN_H_
#define GRADSYNC_CORE_PROGRAM_PROGRAM_MAIN_H_

#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gradsync {

// A path of the command line or of a job file as the user means it: `bazel run` starts programs
// elsewhere, but a relative path is relative to where the user was; `~` and `~name` at its start are
// home folders, which a shell does not see behind an equals sign. An empty path stays empty, and
// `~name` of an unknown user stays a name. Thread-safe.
std::string UserPath(const std::string& path);

// The folder of the checkout that `bazel run` was called in; empty elsewhere. Thread-safe.
std::string CheckoutFolder();

// As UserPath(), of the path in "cifar10:PATH", "imagefolder:PATH" and "text:PATH"; other values of --data
// are names and stay what they are.
std::string UserData(const std::string& data);

// The signals that ask a process to end in good order: SIGINT and SIGTERM; SIGHUP, as from a terminal
// that is closed; SIGUSR1 and SIGUSR2, by which schedulers announce the end (sbatch --signal). A
// signal that this process was started to ignore is left out and stays ignored: nohup does so with
// SIGHUP, and a script with SIGINT for what runs in its background.
std::vector<int> EndingSignals();

// To be called once at each of these signals. Returns whether the process should now end at once.
// Signals within one second count as one, since a program that ends a whole group of processes
// signals the launcher as well, which passes the signal on. The signal that follows an announcement
// of the end (SIGHUP, SIGUSR1, SIGUSR2), such as the SIGTERM at a time limit, does not hurry either.
// May be called from a signal handler; thread-safe.
bool NoteInterrupt(int signal);

// The number of the first signal that one of the next two caught; 0 until then. Thread-safe.
const std::atomic<int>& InterruptSignal();

// 1 after the first signal that CatchInterrupts() caught, and one more each time that the process
// should end at once. Thread-safe.
const std::atomic<int>& InterruptCount();

// From now on EndingSignals() only set InterruptSignal(), those that this process was started to block
// too. Call it once, from main.
void CatchInterrupts();

// From now on the first of EndingSignals() only sets InterruptSignal(); another wish (NoteInterrupt())
// ends the process at once, with the code 128 + its number. Call it once, from main, and not with
// CatchInterrupts().
void CatchFirstInterrupt();

// From here on EndingSignals() end this process with a line on stderr, "program: ended by SIGTERM
// before ...", as they would without; also in the first process of a container, from which the kernel
// keeps signals that have no handler: that one ends with the code 128 + the signal's number. Call it
// once, from main, before other handlers for them are set.
void EndBySignals(absl::string_view program, absl::string_view before);

// From now on a write to a pipe or a terminal that nobody reads any more, or beyond the largest file that
// this process may write (ulimit -f), fails as one to a full disk does and does not end the process: for
// programs that have more to keep than what they print. Call it once, from main; programs that this one
// starts have it so too, unless they are told to have the default.
void OutliveReaders();

// The code for the process to end with: `code`, or 1 if that is 0 and stdout did not take all that was
// written to it (a full disk, say), which a line on stderr tells, whatever the code. To be called last.
int ExitCode(absl::string_view program, int code);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PROGRAM_PROGRAM_MAIN_H_
