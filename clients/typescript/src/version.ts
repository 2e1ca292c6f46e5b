/** The version of the package, sent in the user agent. A test holds it equal to package.json. */
export const VERSION = "0.1.0";
