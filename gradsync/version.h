/* Which gradsync this is, for the preprocessor: in C and in C++. All builds read it here. */

#ifndef GRADSYNC_GRADSYNC_VERSION_H_
#define GRADSYNC_GRADSYNC_VERSION_H_

#define GRADSYNC_VERSION_MAJOR 0
#define GRADSYNC_VERSION_MINOR 1
#define GRADSYNC_VERSION_PATCH 0
#define GRADSYNC_VERSION "0.1.0"

/* The N of libgradsync.so.N: counts up when a program that was linked with the library before may not
 * run with it any more. */
#define GRADSYNC_ABI_VERSION 1

#endif /* GRADSYNC_GRADSYNC_VERSION_H_ */
