// Keeps the OpenMP runtime from binding this program's threads to cores.

#ifndef GRADSYNC_CORE_PROGRAM_OPENMP_BINDING_H_
#define GRADSYNC_CORE_PROGRAM_OPENMP_BINDING_H_

#include <string>

namespace gradsync {

// Site profiles often set OMP_PROC_BIND or OMP_PLACES for programs that have all cores to themselves.
// GCC's OpenMP runtime, which comes with LibTorch, then binds the main thread to the first core while
// it is loaded. All threads that the program starts inherit that: loaders and links as well, and every
// rank of the host takes the same core. A launcher that gives each rank cores of its own does so by
// the affinity mask (Slurm's --cpu-bind, mpirun's --bind-to), which this leaves alone.
//
// A program that calls this function has OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY and KMP_AFFINITY
// taken out of its environment before any library is initialised. Returns what was taken out, such as
// "OMP_PLACES=cores, OMP_PROC_BIND=true"; empty if there was nothing. Thread-safe. For programs alone,
// not for shared libraries: the linker refuses it there.
std::string DroppedOpenMpBinding();

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PROGRAM_OPENMP_BINDING_H_
