/** Tagged templates for any function that makes elements. */
declare const htm: {
  bind(make: (type: any, props: any, ...children: any[]) => unknown): (parts: TemplateStringsArray, ...values: any[]) => any;
};
export default htm;
